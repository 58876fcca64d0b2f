"""The attribute by which torch calls something in place of a module's own
implementation of calls."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any, Final

import torch

from torchprof_hooks.capture.torch_names.place import Place

#: The attribute that torch calls, if it is not None, in place of a module's own
#: implementation of calls: `torch.nn.Module.compile` puts there what it has made.
IMPLEMENTATION: Final = "_compiled_call_impl"
#: The function of torch's that reads this attribute and calls what it finds.
ASKING: Final = "_wrapped_call_impl"
#: Where torch has the attribute. If torch does not look there, no module is measured.
PLACE_OF_IMPLEMENTATION: Final = Place(torch.nn.Module, IMPLEMENTATION)


def interceptor_in_calls() -> Any:
    """The interceptor that we have put in place of that attribute; None if it is not
    there, or somebody else has put something there."""
    found = vars(torch.nn.Module).get(IMPLEMENTATION)
    return found if hasattr(found, "forward_pre") else None


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
