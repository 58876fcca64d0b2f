from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.functions import Cube, Runs, raises, x
from tests.helpers import in_thread
from torchprof_hooks import FunctionHook, add_hook, delete_hook
from torchprof_hooks.function_hooks import NvtxHook
from torchprof_hooks.hooks import nvtx


class FakeNvtx:
    """Stands in for ``torch.cuda.nvtx``: writes down ranges, with their depth."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.ranges: list[tuple[int, str]] = []

    def range_push(self, name: str) -> None:
        self.ranges.append((len(self.open), name))
        self.open.append(name)

    def range_pop(self) -> None:
        self.open.pop()  # fails if there is none


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvtx:
    fake = FakeNvtx()
    monkeypatch.setattr(nvtx.NvtxRanges.__init__, "__defaults__", (fake,))
    return fake


#: The range by which the hook tries whether there is NVTX.
TRIAL = (0, "torchprof_hooks")


def test_names() -> None:
    assert NvtxHook.name == "NvtxHook"
    assert issubclass(NvtxHook, FunctionHook)


@pytest.mark.skipif(bool(torch.version.cuda), reason="needs a torch built without CUDA")
def test_without_cuda_there_is_nothing_to_mark() -> None:
    with pytest.raises(RuntimeError, match="built with CUDA and NVTX"):
        NvtxHook()


def test_ranges_nest_as_calls_do(fake: FakeNvtx) -> None:
    with NvtxHook():
        Cube.apply(F.linear(x(), x(5, 3))).sum().backward()

    assert fake.ranges == [
        TRIAL,
        (0, "linear.forward"),
        (0, "Cube.forward"),
        (1, "mul.forward"),
        (1, "mul.forward"),
        (0, "sum.forward"),
        (0, "sum.backward"),
        (0, "Cube.backward"),
        (0, "linear.backward"),
    ]
    assert fake.open == []


class Inner(Runs):
    """The same under another name."""


ERRORS = pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])


@ERRORS
@pytest.mark.parametrize("function", [Inner, Runs], ids=["other name", "same name"])
def test_ranges_are_balanced_when_a_forward_raises(
    fake: FakeNvtx, error: type[BaseException], function: type[Runs]
) -> None:
    def inner() -> None:
        with pytest.raises(error):
            function.apply(x(), raises(error))
        x().exp()

    with NvtxHook():
        Runs.apply(x(), inner)
        # What raised was never ended by itself, but it ends with what is around it.
        assert fake.open == []

    assert fake.ranges[1:] == [
        (0, "Runs.forward"),
        (1, f"{function.__name__}.forward"),
        (2, "exp.forward"),
        (2, "clone.forward"),
    ]


@ERRORS
def test_ranges_are_balanced_when_a_backward_raises(
    fake: FakeNvtx, error: type[BaseException]
) -> None:
    with NvtxHook():
        with pytest.raises(error):
            Runs.apply(x(), int, raises(error)).sum().backward()
        assert fake.open == ["Runs.backward"]

    assert fake.open == []


def test_ranges_are_balanced_when_the_body_raises(fake: FakeNvtx) -> None:
    def leave() -> None:
        assert fake.open == ["Runs.forward"]
        raise ArithmeticError

    with pytest.raises(ArithmeticError), NvtxHook():
        Runs.apply(x(), leave)

    assert fake.open == []


def test_each_thread_has_ranges_of_its_own(fake: FakeNvtx) -> None:
    hook = NvtxHook()
    add_hook(Cube, hook)
    in_thread(lambda: Cube.apply(x()).sum().backward())
    delete_hook(Cube, hook.name)

    ranges = [pair for pair in fake.ranges if pair != TRIAL]
    assert ranges == [(0, "Cube.forward"), (0, "Cube.backward")]
    assert fake.open == []


@pytest.mark.parametrize("targets", [(F.relu, F.silu), (F.silu, F.relu)])
def test_ranges_of_a_hook_on_two_functions(
    fake: FakeNvtx, targets: tuple[object, object]
) -> None:
    hook = NvtxHook()
    for target in targets:
        add_hook(target, hook)
    F.silu(F.relu(x())).sum().backward()
    for target in targets:
        delete_hook(target, hook.name)

    assert fake.ranges[1:] == [
        (0, "relu.forward"),
        (0, "silu.forward"),
        (0, "silu.backward"),
        (0, "relu.backward"),
    ]


def open_ranges() -> int:
    """How many there are; the same number always where no tool of NVIDIA's listens."""
    depth: int = torch.cuda.nvtx.range_push("how deep?")
    torch.cuda.nvtx.range_pop()
    return depth


@pytest.mark.gpu
def test_real_ranges() -> None:
    before = open_ranges()
    with NvtxHook():
        Cube.apply(torch.ones(2, device="cuda", requires_grad=True)).sum().backward()
    assert open_ranges() == before
