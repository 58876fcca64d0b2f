"""The places where a hook can be, each with a step of which it is told one call there:
the contract of hooks is the same in all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.functions import Cube, FunctionRecorder, Runs, backward, forward, name_of, x
from tests.helpers import FORWARD, MyModel, Recorder, inputs
from torchprof_hooks import add_hook, delete_hook

GRADIENT = torch.ones(2, 3)
#: For all that may end a call.
ERRORS = pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt, SystemExit])

Run = Callable[[torch.Tensor, Sequence[torch.Tensor]], None]


def by_backward(loss: torch.Tensor, leaves: Sequence[torch.Tensor]) -> None:
    loss.backward()


def by_autograd_backward(loss: torch.Tensor, leaves: Sequence[torch.Tensor]) -> None:
    torch.autograd.backward([loss])


def by_grad(loss: torch.Tensor, leaves: Sequence[torch.Tensor]) -> None:
    torch.autograd.grad(loss, leaves)


#: The ways in which a pass begins.
WAYS = pytest.mark.parametrize("run", [by_backward, by_autograd_backward, by_grad])


class Acts:
    """Does something, once, when it has written down the event `at`."""

    def __init__(self, at: str, action: Callable[[], object]) -> None:
        super().__init__()
        self.at: str | None = at
        self.action = action

    def log(self, event: str) -> None:
        super().log(event)  # type: ignore[misc]
        if event == self.at:
            self.at = None
            self.action()


class ActingRecorder(Acts, Recorder):
    """Of modules."""


class ActingFunctionRecorder(Acts, FunctionRecorder):
    """Of functions."""


class Place(NamedTuple):
    """Something that takes a hook."""

    kind: type[Recorder] | type[FunctionRecorder]
    target: Any  # None for the thread
    step: Callable[[], None]
    #: What the hook is told of one `step`.
    events: list[str]

    @property
    def other(self) -> Any:
        """Something else that takes hooks of this kind, and can be called."""
        return nn.Identity() if self.kind is Recorder else F.silu

    @property
    def added(self) -> str:
        return f"added {name_of(self.target)}"

    @property
    def deleted(self) -> str:
        return f"deleted {name_of(self.target)}"

    def add(self, hook: Any) -> Any:
        return hook.__enter__() if self.target is None else add_hook(self.target, hook)

    def delete(self, hook: Any) -> None:
        if self.target is None:
            hook.__exit__(None, None, None)
        else:
            delete_hook(self.target, hook.name)

    def acting(self, at: str, action: Callable[[], object]) -> Any:
        """A hook for this place that does this when it is told of the event `at`."""
        is_link = self.kind is Recorder
        return (ActingRecorder if is_link else ActingFunctionRecorder)(at, action)


def place(kind: Any, target: Any, call: Callable[[], Any], name: str) -> Place:
    def step() -> None:
        call().backward(GRADIENT)

    return Place(kind, target, step, [*forward(name), *backward(name)])


def module() -> Place:
    linear = nn.Linear(3, 3)
    return place(Recorder, linear, lambda: linear(inputs()), "Linear")


def node() -> Place:
    hidden = x().exp()

    def step() -> None:
        hidden.backward(GRADIENT, retain_graph=True)

    return Place(FunctionRecorder, hidden.grad_fn, step, backward("ExpBackward0"))


#: What `add_hook` takes.
TARGETS: dict[str, Callable[[], Place]] = {
    "module": module,
    "function": lambda: place(FunctionRecorder, F.relu, lambda: F.relu(x()), "relu"),
    "class": lambda: place(FunctionRecorder, Cube, lambda: Cube.apply(x()), "Cube"),
    "node": node,
}
#: And what ``with hook:`` is for.
THREAD_WIDE: dict[str, Callable[[], Place]] = {
    "all modules": lambda: module()._replace(target=None),
    "all functions": lambda: TARGETS["function"]()._replace(target=None),
}
PLACES = {**THREAD_WIDE, **TARGETS}


class Around(NamedTuple):
    """Something that takes a hook, and a call of it with something in the middle."""

    kind: type[Recorder] | type[FunctionRecorder]
    target: Any
    call: Callable[[Callable[[], object]], object]
    #: What a hook on it is told, and what a thread-wide one is told: of all, until the
    #: middle, and after it if the hook did not see the call begin.
    local: list[str]
    whole: list[str]
    first_half: list[str]
    second_half: list[str]


def around_module() -> Around:
    model = MyModel()

    def call(middle: Callable[[], object]) -> Any:
        model.between = middle
        return model(inputs())

    events = (forward("MyModel"), FORWARD, FORWARD[:3])
    # l2 is called by something that the hook has not seen: to it, l2 is a root.
    return Around(Recorder, model, call, *events, second_half=forward("Linear"))


def around_function() -> Around:
    def call(middle: Callable[[], object]) -> Any:
        return Runs.apply(x(), middle)

    inner = forward("clone")
    events = (forward("Runs"), ["pre Runs", *inner, "post Runs"], ["pre Runs"])
    return Around(FunctionRecorder, Runs, call, *events, second_half=inner)


AROUND = {"a module": around_module, "a function": around_function}
