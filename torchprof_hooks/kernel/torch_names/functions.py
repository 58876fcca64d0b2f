"""Private names of torch functions, their modes, custom autograd Functions, and torch's
formulas for floating-point operations."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any, Final

import torch
from torch.autograd import function as autograd_function
from torch.overrides import TorchFunctionMode

from torchprof_hooks.kernel.torch_names import Function, Place
from torchprof_hooks.kernel.torch_names.modules import frames_from

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
    if torch says which one that is."""
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


def shapes_of(tensors: Iterable[torch.Tensor]) -> tuple[Shape, ...]:
    """Their shapes. Modes, and classes derived from Tensor, do not see this call. Sizes
    that are no plain numbers (of symbolic or nested tensors), or that only code of the
    user's can tell, are "?"."""
    if torch._C._get_tracing_state() is not None:
        return ()  # torch.jit would record our reads in its trace
    with torch._C.DisableTorchFunction():
        return tuple(map(_shape, tensors))


def referred_tensor(reference: weakref.ref[torch.Tensor]) -> torch.Tensor | None:
    """The tensor that a weak reference refers to. Before torch 2.10, a tensor to which
    only C++ refers dies with that reference, unless torch knows that Python has it
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


# Custom autograd Functions

Run = Callable[..., Any]

#: The base class of the public class, in whose ``apply`` all ``apply`` of custom
#: Functions end. None where torch has no such class: then we see custom Functions in
#: backward only, by the names of their nodes.
_BASE: Final[Any] = getattr(autograd_function, "_SingleLevelFunction", None)
#: From torch 2.15 on, all of ``apply`` is one function of C++ that both classes have.
_APPLY: Final[Any] = vars(torch.autograd.Function).get("apply")
_IS_NATIVE: Final = not isinstance(_APPLY, classmethod)


class FunctionApplications:
    """Notices each application of a custom autograd Function, from `start` to `stop`.

    An ``apply`` in Python ends in a function that we can replace, whatever name a
    program calls it by. If ``apply`` is in C++, we see calls of it that was looked up
    between `start` and `stop`.

    around: given a class, and what does all the work of applying it, returns what is
        called in place of that.
    """

    def __init__(self, around: Callable[[Any, Run], Run]) -> None:
        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if _IS_NATIVE and _is_transformed():
                return _original_apply(cls, args, kwargs)  # applies another class
            run: Run = partial(_run, cls)
            if self._is_on:
                run = around(cls, run)
            return run(*args, **kwargs)

        self._is_on = False
        self._apply = classmethod(apply)
        owners = _BASE, torch.autograd.Function if _IS_NATIVE else None
        self._owners: list[Any] = [owner for owner in owners if owner is not None]

    def start(self) -> None:
        """Replace torch's ``apply``."""
        self._is_on = True
        for owner in self._owners:
            owner.apply = self._apply

    def stop(self) -> None:
        """Undo `start`, where nobody has replaced ours since."""
        self._is_on = False
        for owner in self._owners:
            if vars(owner).get("apply") is not self._apply:
                continue
            if owner is _BASE:
                del owner.apply
            else:
                owner.apply = _APPLY


def _run(cls: Any, *args: Any, **kwargs: Any) -> Any:
    return _original_apply(cls, args, kwargs)


def _original_apply(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Torch's own ``apply``, which `FunctionApplications` replaces."""
    if _IS_NATIVE:
        return _APPLY.__get__(None, cls)(*args, **kwargs)
    return super(_BASE, cls).apply(*args, **kwargs)


def _is_transformed() -> bool:
    """Whether ``torch.func`` transforms what this thread does. Assumes not, if torch
    does not say."""
    ask = getattr(torch._C, "_are_functorch_transforms_active", None)
    return ask is not None and bool(ask())


@cache
def _formulas() -> Mapping[Any, Callable[..., int]]:
    """Torch's formulas for floating-point operations, by operator, with what programs
    register later; empty where torch has none."""
    try:
        from torch.utils import flop_counter
    except ImportError:
        return {}
    found: dict[Any, Callable[..., int]] = getattr(flop_counter, "flop_registry", {})
    return found


def operator_formula(name: str) -> Callable[..., int] | None:
    """Torch's, or the program's, formula for an operator, "aten::mm"; None if there is
    none."""
    namespace, _, operator = name.partition("::")
    if not operator.isidentifier():
        return None
    packet = getattr(getattr(torch.ops, namespace), operator, None)
    return None if packet is None else _formulas().get(packet)
