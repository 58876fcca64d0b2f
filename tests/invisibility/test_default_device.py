"""``torch.set_default_device``: its mode has to be at the bottom of torch's stack."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from tests.functions import FunctionRecorder, Tensors
from torchprof_hooks import FunctionCall, FunctionHook


@pytest.fixture(autouse=True)
def no_device_stays(no_mode_stays: None) -> Iterator[None]:
    yield
    torch.utils._device.CURRENT_DEVICE = None
    vars(torch._GLOBAL_DEVICE_CONTEXT).pop("device_context", None)


def modes() -> list[str]:
    """The kinds of this thread's modes, outermost first."""
    stack = torch.overrides._get_current_function_mode_stack()
    return [type(mode).__name__ for mode in stack]


def steps(count: int = 6) -> None:
    """They end inside of ``Tensor.backward``, which the mode handles."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.ones(4, 8)
    for _ in range(count):
        model(x).sum().backward()


class AtBackward(FunctionHook):
    """Does something in the middle of the first backward pass."""

    name = "AtBackward"

    def __init__(self, do: Callable[[], object]) -> None:
        self.do = [do]

    def backward_preprocess(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        if self.do:
            self.do.pop()()


def test_a_hook_that_is_entered_in_a_backward_pass() -> None:
    """The mode of the default device is off the stack, and comes back on top of all."""
    hook = FunctionRecorder()

    def enter() -> None:
        with pytest.raises(RuntimeError, match="set_default_device"), hook:
            pass

    with AtBackward(enter):
        torch.set_default_device("cpu")
        steps(1)
        assert modes() == ["DeviceContext", "FunctionMode"]
        torch.set_default_device(None)
    with hook:
        torch.ones(2).relu()
    assert [event for event in hook.events if "relu" in event]
