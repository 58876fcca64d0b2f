from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.cores import NATIVE_CORE
from tests.function_hooks.test_memory import FakeMemory, near
from tests.functions import Runs, x
from tests.helpers import in_thread
from torchprof_hooks import LinkHook, add_hook, delete_hook
from torchprof_hooks.capture.tracking.meters.memory import MemoryMeter
from torchprof_hooks.documents.render.units import BYTE_UNITS, format_bytes
from torchprof_hooks.hooks import memory as memory_hook
from torchprof_hooks.link_hooks import MemoryProfileHook
from torchprof_hooks.profiles.errors import MemoryUnavailableError
from torchprof_hooks.profiles.names import ByteUnit

MIB = 2**20


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> FakeMemory:
    fake = FakeMemory()
    meter: Any = lambda device=None: MemoryMeter(fake)  # type: ignore[arg-type]  # noqa: E731
    monkeypatch.setattr(memory_hook, "memory_meter", meter)
    return fake


# On the CPU


class Saves(nn.Module):
    """Keeps one activation of a known size for its backward."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: torch.Tensor) -> Any:
        return _Saves.apply(x, self.size)


class _Saves(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, size: int) -> Any:
        ctx.save_for_backward(torch.empty(size, dtype=torch.uint8))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


class Spills(Saves):
    """Needs as much, but only while it runs. The call of a module inside is the moment
    at which memory is read: the C allocator itself keeps no peak."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.inner = nn.Identity()

    def forward(self, x: torch.Tensor) -> Any:
        block = torch.empty(self.size, dtype=torch.uint8)
        result = self.inner(x.clone())
        del block
        return result


@NATIVE_CORE
def test_what_a_module_keeps_for_backward_is_retained() -> None:
    model = nn.Sequential(Saves(40 * MIB), Spills(64 * MIB))
    with MemoryProfileHook("cpu") as hook:
        loss = model(x()).sum()
        summary = hook.summary()
        loss.backward()

    assert summary["Saves"]["retained_bytes"] == near(40 * MIB)
    assert summary["Saves"]["used_bytes"] == near(40 * MIB)
    assert summary["Spills"]["retained_bytes"] == near(0)
    assert summary["Spills"]["peak_bytes"] == near(64 * MIB)
    # The Sequential holds the one while the other is taken.
    assert summary["Sequential"]["peak_bytes"] == near(104 * MIB)
    assert summary["Sequential"]["retained_bytes"] == near(40 * MIB)


@NATIVE_CORE
def test_without_gradients_nothing_is_retained() -> None:
    with MemoryProfileHook("cpu") as hook, torch.no_grad():
        Saves(40 * MIB)(x())

    assert hook.summary()["Saves"]["retained_bytes"] == near(0)
    assert hook.summary()["Saves"]["occurrence"] == 1


# With counters that are known exactly


class Takes(nn.Module):
    """Does something in forward, and something in backward."""

    def __init__(
        self, now: Callable[[], object] = int, later: Callable[[], object] = int
    ) -> None:
        super().__init__()
        self.now, self.later = now, later

    def forward(self, x: torch.Tensor) -> Any:
        return Runs.apply(x, self.now, self.later)


class Net(nn.Module):
    """Takes 2 for itself. Its a takes 100 and frees 60 at once, and in backward 7; its
    b takes 30, which its backward frees."""

    def __init__(self, memory: FakeMemory) -> None:
        super().__init__()
        self.memory = memory
        self.a = Takes(self.burst, lambda: memory.take(7))
        self.b = Takes(lambda: memory.take(30), lambda: memory.free(30))

    def burst(self) -> None:
        self.memory.take(100, acquired=1000)
        self.memory.free(60)

    def forward(self, x: torch.Tensor) -> Any:
        self.memory.take(2)
        return self.b(self.a(x))


#: The history of a forward and a backward of `Net`: (name, used, acquired, depth).
HISTORY = [
    ("Net.a", 100, 1000, 1),
    ("Net.b", 30, 0, 1),
    ("Net", 132, 1000, 0),
    ("Net.b", 0, 0, 1),
    ("Net.a", 7, 0, 1),
    ("Net", 7, 0, 0),
]


def measured(memory: FakeMemory, steps: int = 1, by: Any = "module") -> Any:
    net = Net(memory)
    with MemoryProfileHook(by=by) as hook:
        for _ in range(steps):
            net(x()).sum().backward()
    return hook


def test_names() -> None:
    assert MemoryProfileHook.name == "MemoryProfileHook"
    assert issubclass(MemoryProfileHook, LinkHook)


def test_history_has_bytes_and_depth(memory: FakeMemory) -> None:
    assert measured(memory, steps=2).call_history == HISTORY * 2


def test_history_by_class(memory: FakeMemory) -> None:
    classes = {"Net": "Net", "Net.a": "Takes", "Net.b": "Takes"}
    expected = [(classes[name], *numbers) for name, *numbers in HISTORY]

    assert measured(memory, by="class").call_history == expected


def test_totals_count_outermost_calls_only(memory: FakeMemory) -> None:
    hook = measured(memory, steps=2)

    assert hook.total_used_bytes() == 2 * (132 + 7) == memory.used
    assert hook.total_acquired_bytes() == 2 * 1000 == memory.acquired


@pytest.mark.parametrize("by", ["module", "class"])
def test_summary_sums_up_the_history(memory: FakeMemory, by: str) -> None:
    hook = measured(memory, steps=3, by=by)
    summary = hook.summary()

    expected = ["Net.a", "Net.b", "Net"] if by == "module" else ["Takes", "Net"]
    assert list(summary) == expected
    for name, sums in summary.items():
        calls = [call for call in hook.call_history if call[0] == name]
        assert sums["used_bytes"] == sum(used for _, used, _, _ in calls)
        assert sums["acquired_bytes"] == sum(acquired for _, _, acquired, _ in calls)
        assert sums["occurrence"] == len(calls)


def test_retained_bytes_are_the_mean_of_forward_calls(memory: FakeMemory) -> None:
    by_module = measured(memory, steps=3).summary()
    by_class = measured(memory, steps=3, by="class").summary()

    # a keeps 100 - 60 = 40, b 30, and Net those and its own 2.
    retained = {name: sums["retained_bytes"] for name, sums in by_module.items()}
    assert retained == {"Net.a": 40, "Net.b": 30, "Net": 72}
    retained = {name: sums["retained_bytes"] for name, sums in by_class.items()}
    assert retained == {"Takes": 35, "Net": 72}


def test_the_peak_is_the_highest_rise_within_one_call(memory: FakeMemory) -> None:
    memory.take(1000)
    memory.free(1000)
    summary = measured(memory, steps=2).summary()

    # a alone rises by 100; in Net, there are 2 more before it.
    peaks = {name: sums["peak_bytes"] for name, sums in summary.items()}
    assert peaks == {"Net.a": 40, "Net.b": 30, "Net": 72}


def test_the_peak_where_the_allocator_sets_a_new_one(memory: FakeMemory) -> None:
    summary = measured(memory).summary()

    peaks = {name: sums["peak_bytes"] for name, sums in summary.items()}
    assert peaks == {"Net.a": 100, "Net.b": 30, "Net": 102}


def test_inner_modules_can_be_left_out(memory: FakeMemory) -> None:
    hook = measured(memory)
    own = hook.summary(own=True)

    used = {name: sums["used_bytes"] for name, sums in own.items()}
    assert used == {"Net.a": 107, "Net.b": 30, "Net": 2}
    assert sum(used.values()) == hook.total_used_bytes()
    assert own["Net"]["acquired_bytes"] == 0
    for name, sums in hook.summary().items():  # whole calls, as without it
        for field in ("peak_bytes", "retained_bytes", "occurrence"):
            assert own[name][field] == sums[field]


def test_inner_modules_are_left_out_in_the_middle_of_the_first_call(
    memory: FakeMemory,
) -> None:
    class Asking(Net):
        def forward(self, x: torch.Tensor) -> Any:
            result = super().forward(x)
            middle.update(hook.summary(own=True))
            return result

    middle: dict[str, Any] = {}
    with MemoryProfileHook(by="module") as hook:
        Asking(memory)(x())
    assert middle.keys() == {"Asking.a", "Asking.b"}
    assert hook.summary(own=True).keys() == {"Asking.a", "Asking.b", "Asking"}


def test_a_bounded_history_keeps_the_newest_calls(memory: FakeMemory) -> None:
    net = Net(memory)
    with MemoryProfileHook(by="module", history_size=4) as hook:
        for _ in range(1000):
            net(x()).sum().backward()

    assert hook.call_history == HISTORY[-4:]
    assert hook.summary()["Net.a"]["used_bytes"] == 1000 * 107


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_call_that_raises_does_not_spoil_the_next(
    memory: FakeMemory, error: type[BaseException]
) -> None:
    def fail() -> None:
        raise error

    net = Net(memory)
    with MemoryProfileHook(by="module") as hook:
        with pytest.raises(error):
            nn.Sequential(Takes(fail))(x())
        with pytest.raises(error):
            Takes(int, fail)(x()).sum().backward()
        before = len(hook.call_history)
        net(x()).sum().backward()

    assert hook.call_history[before:] == HISTORY


def test_a_hook_on_one_module(memory: FakeMemory) -> None:
    net, hook = Net(memory), MemoryProfileHook(by="module")
    add_hook(net.a, hook)
    net(x()).sum().backward()
    in_thread(lambda: net(x()))
    delete_hook(net.a, hook.name)
    net(x())

    numbers = [numbers for _, *numbers in hook.call_history]
    assert numbers == [[100, 1000, 0], [7, 0, 0], [100, 1000, 0]]


def test_a_subclass_gets_callbacks_and_bytes(memory: FakeMemory) -> None:
    class Announcing(MemoryProfileHook):
        def backward_postprocess(self, args: Any) -> None:
            announced.append(args.path)

    announced: list[str] = []
    net = Net(memory)  # callbacks are given modules: they have to live until then
    with Announcing(by="module") as hook:
        net(x()).sum().backward()

    assert announced == ["Net.b", "Net.a", "Net"]
    assert hook.call_history == HISTORY


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

    class Announcing(MemoryProfileHook):
        def backward_postprocess(self, args: Any) -> None:
            announced.append(args.path)

    announced: list[str] = []
    model, given = Aside(), torch.ones(3, requires_grad=True)
    with Announcing("cpu") if hears else MemoryProfileHook("cpu"):
        torch.autograd.grad(model(given).sum(), given)

    assert announced == ["Aside"] * hears


def test_a_hook_that_saw_nothing(memory: FakeMemory) -> None:
    hook, report = MemoryProfileHook(), io.StringIO()
    with hook:
        pass
    hook.print_report(file=report)

    assert (hook.call_history, hook.summary()) == ([], {})
    assert "no module was called" in report.getvalue()


# Reports


@pytest.mark.parametrize("unit", BYTE_UNITS)
def test_the_report_shows_the_summary(memory: FakeMemory, unit: ByteUnit) -> None:
    hook, report = measured(memory), io.StringIO()
    hook.print_report(unit=unit, file=report)

    columns = ["UsedBytes", "AcquiredBytes", "PeakBytes", "RetainedBytes"]
    fields = ("used_bytes", "acquired_bytes", "peak_bytes", "retained_bytes")
    assert [line.split() for line in report.getvalue().splitlines()[:-1]] == [
        ["LinkName", *columns, "Occurrence"],
        *(
            [name, *(format_bytes(sums[field], unit) for field in fields), "2"]
            for name, sums in hook.summary().items()
        ),
    ]


def test_the_report_chooses_units(
    memory: FakeMemory, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(memory).print_report()

    assert capsys.readouterr().out == (
        "LinkName  UsedBytes  AcquiredBytes  PeakBytes  RetainedBytes  Occurrence\n"
        "   Net.a    107.00B       1000.00B    100.00B         40.00B           2\n"
        "   Net.b     30.00B          0.00B     30.00B         30.00B           2\n"
        "     Net    139.00B       1000.00B    102.00B         72.00B           2\n"
        "Memory of hpu:0 (caching allocator), gross: freed bytes count too.\n"
    )


def test_an_unknown_unit_is_refused(memory: FakeMemory) -> None:
    with pytest.raises(
        ValueError, match="unit must be 'auto', 'auto_foreach', 'B', 'KB'"
    ):
        measured(memory).print_report(unit="MiB")


# What is refused


def test_an_unknown_grouping_is_refused(memory: FakeMemory) -> None:
    with pytest.raises(
        ValueError, match="by must be 'module' or 'class', not 'function'"
    ):
        MemoryProfileHook(by="function")  # type: ignore[arg-type]


def test_where_memory_cannot_be_measured_the_error_comes_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unavailable(device: object = None) -> None:
        raise MemoryUnavailableError("another malloc is in use")

    monkeypatch.setattr(memory_hook, "memory_meter", unavailable)
    with pytest.raises(RuntimeError, match="another malloc is in use"):
        MemoryProfileHook()


@pytest.mark.parametrize("device", ["meta", "nonsense"])
def test_a_wrong_device_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match="device must be 'cpu', 'cuda' or"):
        MemoryProfileHook(device)


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
