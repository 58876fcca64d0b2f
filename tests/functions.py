"""Custom Functions, and hooks that write down what they see of functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from torchprof_hooks import FunctionCall, FunctionHook

Tensors = tuple[torch.Tensor | None, ...]
Shapes = list[tuple[int, ...] | None]


class Watching(TorchFunctionMode):
    """A mode of the program's: writes down the functions that torch shows to it."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def x(*size: int) -> torch.Tensor:
    """An input that needs gradients. No hook sees that it is made."""
    with torch._C.DisableTorchFunction():
        return torch.ones(size or (2, 3), requires_grad=True)


#: The gradient of a sum. Where none is given, torch makes it by a function.
ONE = torch.ones(())


def name_of(target: object) -> str:
    """What a recorder calls the target of a hook."""
    return str(getattr(target, "__name__", type(target).__name__))


class FunctionRecorder(FunctionHook):
    """Writes down every callback: ``"pre linear"``."""

    def __init__(self, name: str = "FunctionRecorder") -> None:
        self.name = name
        self.events: list[str] = []

    def log(self, event: str) -> None:
        self.events.append(event)

    def note(
        self, callback: str, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        # backward() before torch 2.9 calls it, as a program would.
        if function.name != "ones_like":
            self.log(f"{callback} {function.name}")

    def added(self, function: Any) -> None:
        self.log(f"added {name_of(function)}")

    def deleted(self, function: Any) -> None:
        self.log(f"deleted {name_of(function)}")

    def forward_preprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        self.note("pre", function, in_data, ())

    def forward_postprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        self.note("post", function, in_data, ())

    def backward_preprocess(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        self.note("backward pre", function, in_data, out_grad)

    def backward_postprocess(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        self.note("backward post", function, in_data, out_grad)

    def taken(self) -> list[str]:
        """The events so far, which are forgotten."""
        events, self.events = self.events, []
        return events


class Seen(NamedTuple):
    """What one callback was told, without the tensors."""

    event: str
    in_data: Shapes
    out_grad: Shapes
    call: FunctionCall


class FunctionKeeper(FunctionRecorder):
    """Keeps what its callbacks were told, too."""

    def __init__(self, name: str = "FunctionKeeper") -> None:
        super().__init__(name)
        self.seen: list[Seen] = []

    def note(
        self, callback: str, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        super().note(callback, function, in_data, out_grad)
        self.seen.append(
            Seen(self.events[-1], shapes(in_data), shapes(out_grad), function)
        )

    def only(self, event: str) -> Seen:
        """What the one callback was told that is called `event`."""
        (seen,) = (seen for seen in self.seen if seen.event == event)
        return seen


def shapes(tensors: Tensors) -> Shapes:
    return [None if tensor is None else tuple(tensor.shape) for tensor in tensors]


def forward(*names: str) -> list[str]:
    """The callbacks of these functions, called one after the other."""
    return [f"{when} {name}" for name in names for when in ("pre", "post")]


def backward(*names: str) -> list[str]:
    """The callbacks of the backwards of these functions, one after the other."""
    return [f"backward {event}" for event in forward(*names)]


def pres(events: Iterable[str]) -> list[str]:
    """Names of the functions that were called."""
    return [e.removeprefix("pre ") for e in events if e.startswith("pre ")]


def backward_pres(events: Iterable[str]) -> list[str]:
    """Names of the functions whose backward was called."""
    return pres(e.removeprefix("backward ") for e in events if "backward pre" in e)


class Cube(torch.autograd.Function):
    """Calls two functions in its forward: mul, and mul again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * x * x * gradients[0]


#: The callbacks of a call of Cube, thread-wide.
CUBE = ["pre Cube", *forward("mul", "mul"), "post Cube"]


class Logged(torch.Tensor):
    """A subclass that writes down which functions it was asked for."""

    asked: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.asked.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class SumAndDifference(torch.autograd.Function):
    """Two outputs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return x + y, x - y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        by_sum, by_difference = gradients
        return by_sum + by_difference, by_sum - by_difference


class Runs(torch.autograd.Function):
    """Calls what it is given: one thing in forward, another one in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, now: Any = int, later: Any = int) -> Any:
        ctx.later = later
        now()
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.later()
        return gradients[0], None, None


def raises(error: type[BaseException]) -> Any:
    """A function that raises `error`."""

    def fail(*_: object) -> None:
        raise error("planned")

    return fail
