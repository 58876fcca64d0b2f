"""The place where torch asks what it is to call in place of a module's own calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, FunctionType
from typing import Any, Final, cast

import torch

from torchprof_hooks.capture.torch_names.place import Place

#: What torch calls in place of a module's own implementation of calls, if it is not
#: None: that which `torch.nn.Module.compile` has made.
_IMPLEMENTATION: Final = "_compiled_call_impl"
#: The function of torch's that asks what it is to call.
ASKING: Final = "_wrapped_call_impl"


def seam_in_calls() -> Any:
    """What we have put there for all modules, or None."""
    found = vars(torch.nn.Module).get(_IMPLEMENTATION)
    return found if isinstance(found, property) else None


def place_of_implementation() -> Place | None:
    """Where torch looks for what it calls in place of a module's own implementation of
    calls; None where it does not: then there are hooks on all modules instead."""
    called: list[object] = []
    is_asked = all(is_known for is_known, _ in _questions(called.append))
    is_asked &= called == [0] and vars(torch.nn.Module).get(_IMPLEMENTATION, 0) is None
    return Place(torch.nn.Module, _IMPLEMENTATION) if is_asked else None


def last_question() -> int:
    """At which instruction torch asks for the last time, and calls what it is told; -1
    where it does not ask."""
    return max((at for _, at in _questions(lambda value: None)), default=-1)


def _questions(answer: Callable[[int], None]) -> list[tuple[bool, int]]:
    """How torch asks before it calls a module: whether what asks is known, and at
    which instruction. The module is called with 0, and `answer` in its place."""
    asked: list[tuple[bool, int]] = []

    def implementation(module: Any) -> Callable[[int], None]:
        frame = sys._getframe(1)
        asked.append((is_asking(frame), frame.f_lasti))
        return answer

    class Probe(torch.nn.Module):
        _compiled_call_impl = property(implementation)

    with suppress(Exception):  # whatever a torch that nobody has tried yet does instead
        Probe()(0)
    return asked


def is_asking(frame: FrameType) -> bool:
    """Whether a frame is torch's that asks what it is to call. A program may ask, too,
    whether a module is compiled, or keep what it finds."""
    return frame.f_code.co_name == ASKING


def compiled_implementation_of(module: torch.nn.Module) -> Callable[..., Any] | None:
    """What `torch.nn.Module.compile` has made for it, if it has."""
    found: Callable[..., Any] | None = vars(module).get(_IMPLEMENTATION)
    return found


def set_compiled_implementation(module: torch.nn.Module, made: Any) -> None:
    """What `torch.nn.Module.compile` does in the end."""
    vars(module)[_IMPLEMENTATION] = made


def implementation_of(module: torch.nn.Module) -> Callable[..., Any]:
    """What torch calls to call `module`."""
    return compiled_implementation_of(module) or module._call_impl


def with_implementation(
    kind: type[torch.nn.Module], implementation: property
) -> type[Any]:
    """A class of modules like `kind`, which torch calls by what this property says."""
    return type(kind.__name__, (kind,), {_IMPLEMENTATION: implementation})


def no_implementation() -> Callable[[Any], None]:
    """A getter for what stands there: of modules in what torch.compile compiles, which
    looks into this function, and not into others of this package."""

    def nothing(module: Any) -> None:
        return None

    return FunctionType(nothing.__code__.replace(), {"__builtins__": {}})


def call_without_global_hooks() -> Callable[..., Any]:
    """A method for modules of our own, in place of ``torch.nn.Module._call_impl``, that
    does the same but finds torch's tables of hooks on all modules empty: other threads
    may need what is in there at the same time. Where the program, or torch, has put
    something else in its place, that is called as it is."""
    original: Any = torch.nn.Module._call_impl
    code = getattr(original, "__code__", None)
    file = torch.nn.modules.module.__file__
    if code is None or code.co_filename != file or original.__closure__:
        return cast("Callable[..., Any]", original)
    names = original.__globals__
    tables = [
        n for n in names if n.startswith("_global_") and isinstance(names[n], dict)
    ]
    # The interpreter keeps what it learns of a function's globals with its code, which
    # is a copy, too.
    return FunctionType(code.replace(), {**names, **{name: {} for name in tables}})


class QuietModule(torch.nn.Module):
    """A module that is nobody's business: hooks on all modules do not see its calls,
    nor does what else a program has put in the way of calls, or we."""

    __call__ = getattr(torch.nn.Module, "_wrapped_call_impl", torch.nn.Module.__call__)
    _compiled_call_impl = None
    _call_impl = call_without_global_hooks()
