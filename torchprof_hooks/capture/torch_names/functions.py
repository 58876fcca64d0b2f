"""Private names of torch functions, of their modes, and of custom Functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import autograd
from torch.overrides import TorchFunctionMode


def push_function_mode(mode: TorchFunctionMode) -> None:
    """Have `mode` see the torch functions that this thread calls."""
    mode.__enter__()  # type: ignore[no-untyped-call]


def remove_function_mode(mode: TorchFunctionMode) -> None:
    """Undo `push_function_mode`, also when other modes have been pushed on top since.
    Where torch hides its stack of modes, the topmost is taken off: ours, if everybody
    uses `with`."""
    try:
        modes = [torch._C._pop_torch_function_stack() for _ in function_modes()]
        for other in reversed(modes):
            if other is not mode:
                torch._C._push_on_torch_function_stack(other)
    except AttributeError:
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def function_modes() -> list[TorchFunctionMode]:
    """The modes of this thread, outermost first. While a mode handles a call, it is not
    among them, nor are those inside of it."""
    return [
        torch._C._get_function_stack_at(position)
        for position in range(torch._C._len_torch_function_stack())
    ]


def is_operator(target: object) -> bool:
    """Whether `target` is one of ``torch.ops``; not, if torch keeps these elsewhere."""
    operators = getattr(torch, "_ops", None)
    kinds = (
        getattr(operators, "OpOverload", ()),
        getattr(operators, "OpOverloadPacket", ()),
    )
    return isinstance(target, kinds)


Shape = tuple[int | str, ...]


def shapes_of(values: Iterable[Any]) -> tuple[Shape, ...]:
    """The shapes of the tensors in `values`, which may be lists of tensors, unseen by
    modes and classes derived from Tensor."""
    with torch._C.DisableTorchFunction():
        return tuple(_shapes(values))


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors in `values`, which may be lists of tensors."""
    tensors: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif type(value) in (list, tuple):
            tensors += tensors_in(value)
    return tensors


def _shapes(values: Iterable[Any]) -> list[Shape]:
    shapes: list[Shape] = []
    for tensor in tensors_in(values):
        try:
            shapes.append(tensor.shape)
        except RuntimeError:  # a nested tensor has none
            shapes.append(("?",))
    return shapes


RunFunction = Callable[..., Any]

#: The class whose ``apply`` all ``apply`` of custom autograd Functions end in: one
#: level deeper than the public class, because people keep ``MyFunction.apply`` under
#: names of their own. None where torch has no such class: custom Functions are then
#: seen in backward only, by the names of their nodes.
_FUNCTION_BASE: Any = getattr(autograd.function, "_SingleLevelFunction", None)


def replace_function_apply(apply: Callable[..., Any]) -> None:
    """Have ``apply(cls, *args, **kwargs)`` called for custom autograd Functions, until
    `restore_function_apply`."""
    if _FUNCTION_BASE is not None:
        _FUNCTION_BASE.apply = classmethod(apply)


def restore_function_apply() -> None:
    """Undo `replace_function_apply`."""
    if "apply" in vars(_FUNCTION_BASE or object):
        del _FUNCTION_BASE.apply


def apply_function(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `replace_function_apply` replaces."""
    return super(_FUNCTION_BASE, cls).apply(*args, **kwargs)
