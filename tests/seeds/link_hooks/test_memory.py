"""What memory hooks have besides a history and sums (see `test_timers_and_memory`)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.cores import NATIVE_CORE
from tests.seeds.link_hooks.fake_memory import (
    MEMORY_HOOKS,
    FakeMemory,
    fake_memory,
    of_modules,
)
from torchprof_hooks import function_hooks
from torchprof_hooks.hooks import tables
from torchprof_hooks.link_hooks import MemoryProfileHook
from torchprof_hooks.profiles.errors import MemoryUnavailableError


@pytest.fixture
def memory() -> Iterator[FakeMemory]:
    with fake_memory() as memory:
        yield memory


@NATIVE_CORE
@pytest.mark.parametrize("kind", MEMORY_HOOKS)
def test_peaks_and_what_inner_calls_take(kind: str, memory: FakeMemory) -> None:
    taken = MEMORY_HOOKS[kind](memory)
    with taken.hook() as hook:
        taken.step()

    whole, own = hook.summary(), hook.summary(own=True)
    assert {name: sums["peak_bytes"] for name, sums in whole.items()} == {
        name: peak for name, (_, _, peak) in taken.sums.items()
    }
    for name, (used, acquired) in taken.own.items():
        own_bytes = {"used_bytes": used, "acquired_bytes": acquired}
        assert own[name] == {**whole[name], **own_bytes}  # the others as without it


REPORTS = {
    "modules": """\
LinkName  UsedBytes  AcquiredBytes  PeakBytes  RetainedBytes  Occurrence
   Net.a    107.00B       1000.00B    100.00B         40.00B           2
   Net.b     30.00B          0.00B     30.00B         30.00B           2
     Net    139.00B       1000.00B    102.00B         72.00B           2
""",
    "functions": """\
FunctionName  UsedBytes  AcquiredBytes  PeakBytes  Occurrence
       clone      0.00B         0.00KB      0.00B           2
       Inner    100.00B         1.95KB    100.00B           1
        Runs    119.00B         1.97KB    105.00B           2
         sum      0.00B         0.00KB      0.00B           2
""",
}


@NATIVE_CORE
@pytest.mark.parametrize("kind", MEMORY_HOOKS)
def test_reports(
    kind: str, memory: FakeMemory, capsys: pytest.CaptureFixture[str]
) -> None:
    taken, file = MEMORY_HOOKS[kind](memory), io.StringIO()
    with taken.hook() as hook:
        taken.step()

    hook.print_report()
    note = (
        "Memory of hpu:0 (caching allocator): what was handed out; "
        "freed bytes count, too.\n"
    )
    assert capsys.readouterr().out == REPORTS[kind] + note
    hook.print_report(unit="KB", file=file)
    assert file.getvalue().count("0.10KB") >= 2
    assert capsys.readouterr().out == ""


HOOKS = pytest.mark.parametrize(
    "make", [MemoryProfileHook, function_hooks.MemoryProfileHook]
)


@HOOKS
def test_where_memory_cannot_be_measured_the_error_comes_at_once(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(device: object = None) -> None:
        raise MemoryUnavailableError("another malloc is in use")

    monkeypatch.setattr(tables, "memory_meter", unavailable)
    with pytest.raises(RuntimeError, match="another malloc is in use"):
        make()


# Modules, with counters that are known exactly


@NATIVE_CORE
def test_sums_by_class(memory: FakeMemory) -> None:
    taken = of_modules(memory)
    with MemoryProfileHook() as hook:
        taken.step()

    classes = {"Net": "Net", "Net.a": "Takes", "Net.b": "Takes"}
    history = [(classes[name], *numbers) for name, *numbers in taken.history]
    assert hook.call_history == history
    summary = hook.summary()
    assert {name: sums["used_bytes"] for name, sums in summary.items()} == {
        "Takes": 107 + 30,
        "Net": 139,
    }
    # a keeps 100 - 60 = 40, b 30, and Net those and its own 2: the mean of forwards.
    assert {name: sums["retained_bytes"] for name, sums in summary.items()} == {
        "Takes": 35,
        "Net": 72,
    }


class Announcing(MemoryProfileHook):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.announced: list[str] = []

    def backward_postprocess(self, args: Any) -> None:
        self.announced.append(args.path)


@NATIVE_CORE
def test_a_subclass_gets_callbacks_and_bytes(memory: FakeMemory) -> None:
    taken = of_modules(memory)
    with Announcing(by="module") as hook:
        taken.step()

    assert hook.announced == ["Net.b", "Net.a", "Net"]
    assert hook.call_history == taken.history


# Modules on the CPU


class Aside(nn.Module):
    """Calls a module that its input does not go through."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> Any:
        return x * 2 + self.inner(self.weight)


@NATIVE_CORE
@pytest.mark.parametrize("hears", [False, True])
def test_a_pass_that_leaves_an_inner_module_out(hears: bool) -> None:
    """It goes from the outer module over to the outer module, which is no move."""
    model, given = Aside(), torch.ones(3, requires_grad=True)
    with Announcing("cpu") if hears else MemoryProfileHook("cpu") as hook:
        torch.autograd.grad(model(given).sum(), given)

    assert getattr(hook, "announced", []) == ["Aside"] * hears


@pytest.mark.gpu
def test_bytes_on_a_device_are_exact() -> None:
    # 100,001 bytes are rounded up to a multiple of 512: 196 * 512 = 100,352.
    class Doubles(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + x) + x

    tensor = torch.ones(100_001, dtype=torch.uint8, device="cuda")
    with MemoryProfileHook() as hook:
        kept = Doubles()(tensor)

    sums = hook.summary()["Doubles"]
    assert sums["used_bytes"] == 2 * 100_352
    assert sums["retained_bytes"] == 100_352
    assert sums["peak_bytes"] <= 2 * 100_352
    assert kept.is_cuda
