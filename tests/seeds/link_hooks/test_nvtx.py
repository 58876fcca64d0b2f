"""NVTX ranges of modules and of functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.functions import Cube, raises, x
from tests.helpers import MyModel, in_thread, inputs
from torchprof_hooks import add_hook, delete_hook, function_hooks, link_hooks
from torchprof_hooks.hooks import nvtx


class FakeNvtx:
    """Stands in for ``torch.cuda.nvtx``: writes down ranges, with their depth."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.ranges: list[tuple[int, str]] = []

    def range_push(self, name: str) -> None:
        if name != "torchprof_hooks":  # by which the hook tries whether there is NVTX
            self.ranges.append((len(self.open), name))
        self.open.append(name)

    def range_pop(self) -> None:
        self.open.pop()  # fails if there is none


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvtx:
    fake = FakeNvtx()
    monkeypatch.setattr(nvtx.NvtxRanges.__init__, "__defaults__", (fake,))
    return fake


HOOKS = pytest.mark.parametrize("hook", [link_hooks.NvtxHook, function_hooks.NvtxHook])
ERRORS = pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])


@pytest.mark.skipif(bool(torch.version.cuda), reason="needs a torch built without CUDA")
@HOOKS
def test_without_cuda_there_is_nothing_to_mark(hook: Any) -> None:
    with pytest.raises(RuntimeError, match="built with CUDA and NVTX"):
        hook()


def test_ranges_nest_as_modules_do(fake: FakeNvtx) -> None:
    model = MyModel()
    with link_hooks.NvtxHook():
        for _ in range(2):
            model(inputs()).sum().backward()

    assert fake.ranges == 2 * [
        (0, "MyModel.forward"),
        (1, "MyModel.l1.forward"),
        (1, "MyModel.l2.forward"),
        (0, "MyModel.backward"),
        (1, "MyModel.l2.backward"),
        (1, "MyModel.l1.backward"),
    ]
    assert fake.open == []


def test_ranges_nest_as_functions_do(fake: FakeNvtx) -> None:
    with function_hooks.NvtxHook():
        Cube.apply(F.linear(x(), x(5, 3))).sum().backward()

    assert fake.ranges == [
        (0, "linear.forward"),
        (0, "Cube.forward"),
        (1, "mul.forward"),
        (1, "mul.forward"),
        (0, "sum.forward"),
        *[(0, f"{name}.backward") for name in ("sum", "Cube", "linear")],
    ]
    assert fake.open == []


@ERRORS
def test_ranges_are_balanced_when_a_module_raises(
    fake: FakeNvtx, error: type[BaseException]
) -> None:
    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.risky = MyModel()
            self.risky.between = raises(error)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with pytest.raises(error):
                self.risky(x)
            return x

    tries = Tries()
    with link_hooks.NvtxHook():
        tries(inputs())
        assert fake.open == []  # what raised ended with what is around it
        with pytest.raises(error):
            tries.risky(inputs())
        assert fake.open == ["Tries.risky.forward"]  # as nobody could tell

    assert fake.open == []
    assert fake.ranges[:3] == [
        (0, "Tries.forward"),
        (1, "Tries.risky.forward"),
        (2, "Tries.risky.l1.forward"),
    ]


@HOOKS
def test_each_thread_has_ranges_of_its_own(fake: FakeNvtx, hook: Any) -> None:
    linear, active = nn.Linear(3, 3), hook()
    target: Any = linear if hook is link_hooks.NvtxHook else Cube
    add_hook(target, active)
    in_thread(lambda: Cube.apply(linear(inputs())).sum().backward())
    delete_hook(target, active.name)

    name = "Linear" if target is linear else "Cube"
    assert fake.ranges == [(0, f"{name}.forward"), (0, f"{name}.backward")]
    assert fake.open == []


def open_ranges() -> int:
    """How many there are; the same number always where no tool of NVIDIA's listens."""
    depth: int = torch.cuda.nvtx.range_push("how deep?")
    torch.cuda.nvtx.range_pop()
    return depth


@pytest.mark.gpu
def test_real_ranges() -> None:
    before = open_ranges()
    with function_hooks.NvtxHook():
        Cube.apply(torch.ones(2, device="cuda", requires_grad=True)).sum().backward()
    assert open_ranges() == before
