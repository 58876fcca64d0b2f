"""The attribute by which torch calls something in place of a module's own
implementation of calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, FunctionType
from typing import Any, Final

import torch

from torchprof_hooks.capture.torch_names.place import Place

#: The attribute that torch calls, if it is not None, in place of a module's own
#: implementation of calls: `torch.nn.Module.compile` puts there what it has made.
_IMPLEMENTATION: Final = "_compiled_call_impl"
#: The function of torch's that reads this attribute and calls what it finds.
ASKING: Final = "_wrapped_call_impl"


def interceptor_in_calls() -> Any:
    """The interceptor that we have put in place of that attribute; None if it is not
    there, or somebody else has put something there."""
    found = vars(torch.nn.Module).get(_IMPLEMENTATION)
    return found if hasattr(found, "forward_pre") else None


def place_of_implementation() -> Place | None:
    """Where torch looks for what to call in place of a module's own implementation;
    None if this torch does not look: then we use hooks on all modules instead."""
    called: list[object] = []
    is_asked = all(_questions(called.append))
    is_asked &= called == [0] and vars(torch.nn.Module).get(_IMPLEMENTATION, 0) is None
    return Place(torch.nn.Module, _IMPLEMENTATION) if is_asked else None


def _questions(answer: Callable[[int], None]) -> list[bool]:
    """Call a module on trial, and return, for each read of the attribute, whether the
    function that reads it is the known one. `answer` is called in place of the module,
    with 0."""
    asked: list[bool] = []

    def implementation(module: Any) -> Callable[[int], None]:
        asked.append(is_asking(sys._getframe(1)))
        return answer

    class Probe(torch.nn.Module):
        _compiled_call_impl = property(implementation)

    with suppress(Exception):  # whatever an untried version of torch raises
        Probe()(0)
    return asked


def is_asking(frame: FrameType) -> bool:
    """Whether torch, in this frame, reads the attribute in order to call it. Programs
    may read it, too, to see whether a module is compiled, or to keep what they find."""
    return frame.f_code.co_name == ASKING


def no_implementation() -> Callable[[Any], None]:
    """A getter that finds no implementation, for torch.compile to trace: it may trace
    into this function, but not into others of this package."""

    def nothing(module: Any) -> None:
        return None

    return FunctionType(nothing.__code__.replace(), {"__builtins__": {}})
