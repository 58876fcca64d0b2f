"""What measures a run, and what of a run it must not change by a single bit."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from torchprof_hooks import (
    FunctionHook,
    LinkHook,
    function_hooks,
    link_hooks,
    profile,
)
from torchprof_hooks.kernel.core import CORE

Measurer = Callable[[], AbstractContextManager[Any]]


class EveryLink(LinkHook):
    """Overrides every callback."""

    name = "EveryLink"

    def forward_preprocess(self, args: Any) -> None: ...
    def forward_postprocess(self, args: Any) -> None: ...
    def backward_preprocess(self, args: Any) -> None: ...
    def backward_postprocess(self, args: Any) -> None: ...


class EveryFunction(FunctionHook):
    """Overrides every callback."""

    name = "EveryFunction"

    def forward_preprocess(self, function: Any, in_data: Any) -> None: ...
    def forward_postprocess(self, function: Any, in_data: Any) -> None: ...
    def backward_preprocess(
        self, function: Any, in_data: Any, out_grad: Any
    ) -> None: ...
    def backward_postprocess(
        self, function: Any, in_data: Any, out_grad: Any
    ) -> None: ...


@contextlib.contextmanager
def several() -> Iterator[None]:
    """A profile, with hooks of both kinds inside and outside of it."""
    with (
        EveryFunction(),
        EveryLink(),
        profile(functions=True),
        profile(),
        function_hooks.TimerHook(),
        link_hooks.TimerHook(backward=True),
    ):
        yield


#: Each way to measure.
MEASURERS: dict[str, Measurer] = {
    "profile": profile,
    "profile of functions": lambda: profile(functions=True),
    "profile of memory": lambda: profile(memory=True),
    "profile of functions and memory": lambda: profile(functions=True, memory=True),
    "link callbacks": EveryLink,
    "link timer": link_hooks.TimerHook,
    "link timer with backward": lambda: link_hooks.TimerHook(backward=True),
    "function callbacks": EveryFunction,
    "function timer": function_hooks.TimerHook,
    "function printer": lambda: function_hooks.PrintHook(file=io.StringIO()),
    "several": several,
}
if CORE.module is not None:  # which bytes on the CPU need
    MEASURERS |= {
        "link memory": link_hooks.MemoryProfileHook,
        "function memory": function_hooks.MemoryProfileHook,
    }

#: Also one that may measure some of the steps alone.
WITH_BUDGET: dict[str, Measurer] = {
    **MEASURERS,
    "profile of some steps": lambda: profile(steps=1, every=3),
}


def exact(value: Any, bits: bool = True) -> Any:
    """Something that equals another such thing only if the two values agree in types,
    shapes, strides and, unless not asked for, every bit. A NaN equals one of the same
    bits."""
    if isinstance(value, torch.Tensor):
        return _exact_tensor(value, bits)
    if isinstance(value, Mapping):
        return type(value), [(key, exact(part, bits)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [exact(part, bits) for part in value]
    if isinstance(value, BaseException):
        return type(value), str(value)
    if isinstance(value, (float, complex)):
        return type(value), repr(value)
    return type(value), value


def _exact_tensor(tensor: torch.Tensor, bits: bool) -> Any:
    plain = tensor.detach()
    return (
        type(tensor),
        (tensor.dtype, tensor.layout, tensor.device, tensor.shape),
        (tensor.requires_grad, tensor.is_leaf, type(tensor.grad_fn).__name__),
        plain.stride() if plain.layout is torch.strided else None,
        [_bits(part) for part in _parts(plain)] if bits else None,
    )


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The strided tensors that a tensor consists of."""
    if tensor.is_meta:
        return []
    layout = tensor.layout
    if layout is torch.strided:
        return [tensor]
    if layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor.to_dense()]


def _bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.reshape(-1)
    try:
        array = flat.numpy(force=True)
    except TypeError:  # a type that numpy does not know
        array = flat.view(_AS_INTEGERS[flat.itemsize]).numpy(force=True)
    bits: bytes = array.tobytes()
    return bits


_AS_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}
