from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.function_hooks.test_nvtx import TRIAL, FakeNvtx
from tests.helpers import MyModel, in_thread, inputs
from torchprof_hooks import LinkHook, add_hook, delete_hook
from torchprof_hooks.hooks import nvtx
from torchprof_hooks.link_hooks import NvtxHook


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvtx:
    fake = FakeNvtx()
    monkeypatch.setattr(nvtx.NvtxRanges.__init__, "__defaults__", (fake,))
    return fake


FORWARD = [(0, "MyModel.forward"), (1, "MyModel.l1.forward"), (1, "MyModel.l2.forward")]
BACKWARD = [
    (0, "MyModel.backward"),
    (1, "MyModel.l2.backward"),
    (1, "MyModel.l1.backward"),
]


def test_names() -> None:
    assert NvtxHook.name == "NvtxHook"
    assert issubclass(NvtxHook, LinkHook)


@pytest.mark.skipif(bool(torch.version.cuda), reason="needs a torch built without CUDA")
def test_without_cuda_there_is_nothing_to_mark() -> None:
    with pytest.raises(RuntimeError, match="built with CUDA and NVTX"):
        NvtxHook()


def test_ranges_nest_as_modules_do(fake: FakeNvtx) -> None:
    model = MyModel()
    with NvtxHook():
        for _ in range(2):
            model(inputs()).sum().backward()

    assert fake.ranges == [TRIAL, *(FORWARD + BACKWARD) * 2]
    assert fake.open == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_ranges_are_balanced_when_a_forward_raises(
    fake: FakeNvtx, error: type[BaseException]
) -> None:
    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.risky = MyModel()
            self.risky.between = self.fail

        def fail(self) -> None:
            raise error

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with pytest.raises(error):
                self.risky(x)
            return x

    tries = Tries()
    with NvtxHook():
        tries(inputs())
        assert fake.open == []  # what raised ended with what is around it
        with pytest.raises(error):
            tries.risky(inputs())
        assert fake.open == ["Tries.risky.forward"]  # as nobody could tell

    assert fake.open == []
    assert fake.ranges[1:4] == [
        (0, "Tries.forward"),
        (1, "Tries.risky.forward"),
        (2, "Tries.risky.l1.forward"),
    ]


def test_ranges_are_balanced_when_the_body_raises(fake: FakeNvtx) -> None:
    model = MyModel()

    def leave() -> None:
        assert fake.open == ["MyModel.forward"]
        raise ArithmeticError

    model.between = leave
    with pytest.raises(ArithmeticError), NvtxHook():
        model(inputs())

    assert fake.open == []


def test_each_thread_has_ranges_of_its_own(fake: FakeNvtx) -> None:
    model, hook = MyModel(), NvtxHook()
    add_hook(model.l1, hook)
    in_thread(lambda: model(inputs()))
    model(inputs())
    delete_hook(model.l1, hook.name)

    assert [pair for pair in fake.ranges if pair != TRIAL] == [
        (0, "Linear.forward")
    ] * 2
    assert fake.open == []
