"""Private names by which the input tensors of a call are looked at, unseen by modes and
by classes derived from Tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import torch

from torchprof_hooks.capture.torch_names.functions import tensors_in

#: How many inputs of a call are described.
_INPUTS_NOTED: Final = 8
#: What is said of an input that only code of the user's could tell about.
_UNKNOWN: Final = "?"
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


class TensorKind(NamedTuple):
    """What a tensor is, apart from its elements.

    needs_grad: whether a backward pass computes its gradient. Where gradients are
        disabled for a while, results do not tell: then it is assumed.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    needs_grad: bool


def _missing_functorch(tensor: torch.Tensor) -> bool:
    """Without this, calls inside of ``torch.func.vmap`` count as those of one example
    of the batch."""
    return False


_is_transformed: Any = getattr(
    getattr(torch._C, "_functorch", None),
    "is_functorch_wrapped_tensor",
    _missing_functorch,
)


def tensor_kind(tensor: torch.Tensor) -> TensorKind | None:
    """What `tensor` is; None if it is more than a dense array of plain sizes."""
    if type(tensor) not in _PLAIN:
        return None
    with torch._C.DisableTorchFunction():
        if (
            tensor.layout is not torch.strided
            or tensor.is_nested
            or tensor.is_quantized
            or _is_transformed(tensor)
        ):
            return None
        shape = tuple(tensor.shape)
        if any(type(size) is not int for size in shape):
            return None
        has_grad = tensor.requires_grad
        if not torch.is_grad_enabled() and type(tensor) is torch.Tensor:
            has_grad = tensor.dtype.is_floating_point or tensor.dtype.is_complex
        return TensorKind(shape, tensor.dtype, has_grad)


def autocast_type(device_type: str) -> torch.dtype | None:
    """The data type to which autocast converts the inputs of matrix products on devices
    of this type; None if autocast is off, or not supported there."""
    try:
        if torch.is_autocast_enabled(device_type):
            return torch.get_autocast_dtype(device_type)
    except RuntimeError:  # there is no autocast for this type of device
        pass
    return None


def input_types(values: Iterable[Any]) -> tuple[str, ...]:
    """Data type and device of the first tensors in `values`, which may be lists of
    tensors: ``float32@cpu``."""
    if torch._C._get_tracing_state() is not None:
        return ()  # torch.jit would write down that we looked
    with torch._C.DisableTorchFunction():
        return tuple(map(_input_type, tensors_in(values)[:_INPUTS_NOTED]))


def _input_type(tensor: torch.Tensor) -> str:
    if _is_asked_itself(tensor):
        return _UNKNOWN
    return f"{str(tensor.dtype).removeprefix('torch.')}@{tensor.device.type}"


def device_type_of(tensor: torch.Tensor) -> str:
    """The device type, ``cpu``, say; "" where only code of the user's can tell."""
    with torch._C.DisableTorchFunction():
        return "" if _is_asked_itself(tensor) else tensor.device.type


def description_of(tensor: torch.Tensor) -> str:
    """``float32[2, 3] cpu requires_grad``, without looking at the elements; what only
    code of the user's can tell is "?"."""
    with torch._C.DisableTorchFunction():
        dtype = str(tensor.dtype).removeprefix("torch.")
        grad = " requires_grad" if tensor.requires_grad else ""
        kind = "" if type(tensor) is torch.Tensor else f" {type(tensor).__name__}"
        is_of_torch = type(tensor).__module__.partition(".")[0] == "torch"
        if _is_asked_itself(tensor) and not is_of_torch:
            return f"{dtype}[?] ?{kind}{grad}"
        try:
            shape = str(list(tensor.shape))
        except RuntimeError:  # a nested tensor has none
            shape = "[?]"
        return f"{dtype}{shape} {tensor.device}{kind}{grad}"


def _is_asked_itself(tensor: torch.Tensor) -> bool:
    """Whether a class of the user's may be asked for the shape and the device."""
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
