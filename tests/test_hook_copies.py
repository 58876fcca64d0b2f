"""Copies of hooks, by themselves and in models: they have not begun."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.functions import FunctionRecorder, Tensors
from tests.helpers import Recorder, inputs
from tests.test_link_hook_lifetime import DUPLICATE
from torchprof_hooks import (
    FunctionCall,
    FunctionHook,
    LinkCall,
    LinkHook,
    add_hook,
    delete_hook,
    function_hooks,
    link_hooks,
)
from torchprof_hooks.hooks.nvtx import NvtxRanges


class Modules(LinkHook):
    """Its `__init__` does not call that of the base class, nor need it."""

    name = "Modules"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def forward_preprocess(self, args: LinkCall) -> None:
        self.seen.append(args.path)


class Functions(FunctionHook):
    name = "Functions"
    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen: list[str] = []

    def forward_preprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        self.seen.append(function.name)


class OfItsOwnState(Modules):
    """Says what is pickled of it, as many classes do: all that there is."""

    def __getstate__(self) -> dict[str, Any]:
        return vars(self).copy()


OURS: tuple[Callable[[], Any], ...] = (
    link_hooks.TimerHook,
    link_hooks.MemoryProfileHook,
    function_hooks.TimerHook,
    function_hooks.MemoryProfileHook,
)
COPY: list[Any] = [copy.copy, *DUPLICATE]


def step() -> None:
    F.relu(nn.Linear(3, 3)(inputs())).sum().backward()


def use(hook: Any) -> None:
    """Have it active for a thread, and for a target."""
    with hook:
        step()
    target: Any = nn.Linear(3, 3) if isinstance(hook, LinkHook) else F.relu
    add_hook(target, hook)
    step()
    delete_hook(target, hook.name)


@pytest.mark.parametrize("duplicate", COPY)
@pytest.mark.parametrize("make", [Modules, Functions, OfItsOwnState])
def test_a_copy_is_told_of_its_calls_alone(
    duplicate: Callable[[Any], Any], make: Callable[[], Any]
) -> None:
    hook = make()
    use(hook)
    before = list(hook.seen)

    twin = duplicate(hook)

    assert twin.seen == before  # what is the user's is copied
    hook.seen, twin.seen = [], []
    with twin:
        step()
    assert not hook.seen
    assert twin.seen
    with hook, Recorder(), FunctionRecorder():
        twin.seen.clear()
        step()
    assert not twin.seen


@pytest.mark.parametrize("duplicate", COPY)
@pytest.mark.parametrize("make", OURS)
def test_a_copy_has_measured_nothing(
    duplicate: Callable[[Any], Any], make: Callable[..., Any]
) -> None:
    hook = make(history_size=3)
    use(hook)
    before = hook.call_history, str(hook.summary())

    twin = duplicate(hook)

    assert not twin.call_history
    assert not twin.summary()
    use(twin)
    assert twin.summary().keys() == hook.summary().keys()
    assert len(twin.call_history) <= 3  # as it was made
    assert (hook.call_history, str(hook.summary())) == before


@pytest.mark.parametrize("duplicate", COPY)
def test_the_copy_of_an_active_hook_is_not_active(
    duplicate: Callable[[Any], Any],
) -> None:
    hook = Modules()
    with hook:
        twin = duplicate(hook)
        step()
        with pytest.raises(RuntimeError, match="was not entered"):
            twin.__exit__(None, None, None)
    assert hook.seen == ["Linear"]


@pytest.mark.parametrize("duplicate", DUPLICATE)
def test_a_model_that_has_its_hook(duplicate: Callable[[Any], Any]) -> None:
    model: Any = nn.Sequential(nn.Linear(3, 3))
    model.hook, model.timer = Modules(), link_hooks.TimerHook()
    add_hook(add_hook(model, model.hook), model.timer)
    model(inputs())

    twin = duplicate(model)
    assert torch.equal(twin(inputs()), model(inputs()))

    assert model.hook.seen == ["Sequential"] * 2
    assert twin.hook.seen == ["Sequential"]  # the copy is not hooked
    add_hook(twin, twin.hook)
    twin(inputs())
    assert twin.hook.seen == ["Sequential"] * 2
    assert not twin.timer.call_history


def test_ranges_are_not_those_of_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def range_push(self, name: str) -> None: ...
        def range_pop(self) -> None: ...

    monkeypatch.setattr(NvtxRanges.__init__, "__defaults__", (Silent(),))
    hook = link_hooks.NvtxHook()
    use(hook)
    twin = pickle.loads(pickle.dumps(hook))
    use(twin)
    assert copy.copy(hook)._ranges is not hook._ranges
