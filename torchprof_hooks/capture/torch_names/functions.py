"""Private names of torch functions and of their modes."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from torchprof_hooks.capture.torch_names.inputs import tensors_in
from torchprof_hooks.capture.torch_names.modules import frames_from
from torchprof_hooks.capture.torch_names.place import Function, Place

#: Attribute of the mode that ``set_default_device`` puts at the bottom of the stack;
#: that of ``with torch.device(...)``, which goes on top, lacks it.
_ENTERED_AT_BOTTOM: Final = "old_device"


def push_function_mode(mode: TorchFunctionMode) -> None:
    """Have `mode` see the torch functions that this thread calls, and that its other
    modes call in turn.

    `mode` goes below the others: when one of the program's modes ends, it pops the
    topmost mode, which must be itself. Only the mode of ``set_default_device`` stays
    below `mode`, at the very bottom, where torch looks for it.
    """
    above: list[TorchFunctionMode] = []
    try:
        while torch._C._len_torch_function_stack():
            other = torch._C._pop_torch_function_stack()
            above.append(other)
            if _is_default_device(other):
                torch._C._push_on_torch_function_stack(above.pop())
                break
    finally:  # also when an interrupt comes in between
        for pushed in (mode, *reversed(above)):
            torch._C._push_on_torch_function_stack(pushed)


def remove_function_mode(mode: TorchFunctionMode) -> None:
    """Undo `push_function_mode`, even if other modes were pushed on top since."""
    kept: list[TorchFunctionMode] = []
    try:
        for _ in function_modes():
            kept.append(torch._C._pop_torch_function_stack())
    finally:  # also when an interrupt comes in between
        for other in reversed(kept):
            if other is not mode:
                torch._C._push_on_torch_function_stack(other)


def is_default_device_at_work() -> bool:
    """Whether the mode of ``set_default_device`` is handling a call of this thread.
    Then `push_function_mode` must wait: torch has popped that mode, and will push it
    back on top of the whole stack."""
    return any(
        frame.f_code.co_name == "__torch_function__"
        and _is_default_device(frame.f_locals.get("self"))
        for frame in frames_from(sys._getframe(1))
    )


def _is_default_device(mode: object) -> bool:
    return issubclass(type(mode), TorchFunctionMode) and hasattr(
        mode, _ENTERED_AT_BOTTOM
    )


#: The function that pushes a mode back on the stack when the mode has handled a call
#: of one of torch's functions that are written in Python.
RETURN_OF_MODES: Final = Place(torch.overrides, "_push_mode")


def function_modes() -> list[TorchFunctionMode]:
    """The modes of this thread, outermost first. While a mode handles a call, it is not
    among them, nor are those inside of it."""
    return [
        torch._C._get_function_stack_at(position)
        for position in range(torch._C._len_torch_function_stack())
    ]


#: The check by which some of torch's own modules (multi-head attention, transformer
#: encoders) find out whether a mode is active. Functions that torch shows to modes use
#: another check.
OVERRIDE_CHECK: Final = Place(torch.overrides, "has_torch_function")


def make_builtin(function: Function, original: Function) -> None:
    """Have TorchScript take `function` for the operator that it takes `original` for,
    if torch tells which one that is."""
    builtins = getattr(torch.jit, "_builtins", None)
    if builtins is not None and builtins._find_builtin(function) is None:
        builtins._register_builtin(function, builtins._find_builtin(original))


def is_operator(target: object) -> bool:
    """Whether `target` is one of ``torch.ops``: no, if torch keeps these elsewhere."""
    operators = getattr(torch, "_ops", None)
    kinds = (
        getattr(operators, "OpOverload", ()),
        getattr(operators, "OpOverloadPacket", ()),
    )
    return isinstance(target, kinds)


Shape = tuple[int | str, ...]


def shapes_of(values: Iterable[Any]) -> tuple[Shape, ...]:
    """The shapes of the tensors in `values`, which may be lists of tensors. Modes, and
    classes derived from Tensor, do not see this call. Sizes that are no plain numbers
    (of symbolic or nested tensors), or that only code of the user's can tell, are
    "?"."""
    if torch._C._get_tracing_state() is not None:
        return ()  # torch.jit would record our reads in its trace
    shapes: list[Shape] = []
    with torch._C.DisableTorchFunction():
        for value in values:
            if type(value) in _PLAIN and not value.is_nested:
                shapes.append(value.shape)  # the usual case, made short
            elif issubclass(type(value), _SEARCHED):
                shapes += map(_shape, tensors_in((value,)))
    return tuple(shapes)


_SEARCHED: Final = (torch.Tensor, list, tuple, dict)
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


def referred_tensor(reference: weakref.ref[torch.Tensor]) -> torch.Tensor | None:
    """The tensor that a weak reference refers to. Before torch 2.10, a tensor to which
    only C++ refers dies with that reference, unless torch is told that Python has it
    again."""
    tensor = reference()
    if tensor is not None and _holds_again is not None:
        _holds_again(tensor)
    return tensor


_holds_again: Final[Callable[[torch.Tensor], object] | None] = getattr(
    torch.Tensor, "_fix_weakref", None
)


def _shape(tensor: torch.Tensor) -> Shape:
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return _UNKNOWN
    try:
        return tuple(size if type(size) is int else "?" for size in tensor.shape)
    except RuntimeError:  # a nested tensor of the older kind
        return _UNKNOWN


_UNKNOWN: Final[Shape] = ("?",)
