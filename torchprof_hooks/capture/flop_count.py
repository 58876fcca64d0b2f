"""How many floating-point operations the calls at each site took."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch

from torchprof_hooks.capture.call_description import CallDescription, Items
from torchprof_hooks.capture.site import Site
from torchprof_hooks.capture.torch_names.flop_mode import (
    FlopMode,
    TooManyOperatorsError,
    can_count_flops,
)
from torchprof_hooks.capture.torch_names.functions import tensors_in
from torchprof_hooks.capture.torch_names.inputs import TensorKind

#: Operators that one call may come down to, forward or backward: for a recurrent
#: network, the more the longer the sequence.
_MOST_OPERATORS: Final = 4_000
#: How many may be called for one snapshot, about: some seconds at the very most.
_MOST_OPERATORS_IN_ALL: Final = 20_000


class Flops(NamedTuple):
    """Floating-point operations of one call, 0 where they are not known.

    operators: how many were called to find out.
    """

    forward: int = 0
    backward: int = 0
    operators: int = 0


def flops_of_sites(sites: Sequence[Site], calls: Sequence[int]) -> list[int]:
    """Floating-point operations of all calls at each site, given their numbers.

    Only what torch has a formula for is counted, and only in calls that could be
    described. torch's functions are run for that on tensors without elements. Where
    there is no end of different ones, those called most often are looked at.
    """
    numbers: dict[CallDescription, int] = {}
    for site, number in zip(sites, calls, strict=True):
        if site.described is not None and number:
            numbers[site.described] = numbers.get(site.described, 0) + number
    if not numbers or not can_count_flops():
        return [0] * len(sites)
    known = _count_all(sorted(numbers, key=lambda call: -numbers[call]))
    return [
        number * _per_call(site, known) if number else 0
        for site, number in zip(sites, calls, strict=True)
    ]


def _per_call(site: Site, known: dict[CallDescription, Flops]) -> int:
    if site.described is None:
        return 0
    flops = known.get(site.described, Flops())
    return flops.backward if site.phase == "backward" else flops.forward


def _count_all(calls: list[CallDescription]) -> dict[CallDescription, Flops]:
    """This happens in a thread of its own, where neither trackers nor modes of other
    threads look, nor what else they have switched on: autocast, say."""
    found: dict[CallDescription, Flops] = {}

    def count() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # given already, for the call itself
            left = _MOST_OPERATORS_IN_ALL
            for call in calls:
                found[call] = flops = count_flops(call)
                left -= flops.operators
                if left < 0:
                    return

    thread = threading.Thread(target=count)
    with suppress(RuntimeError):  # no more threads, as the interpreter shuts down
        thread.start()
        thread.join()
    return found


@lru_cache(maxsize=4096)
def count_flops(call: CallDescription) -> Flops:
    """Floating-point operations of one call and of its backward.

    Where the call fails, it may be that autocast would have made its inputs of one
    type; or that it changes in place what gradients are asked for.
    """
    tried = 0
    for as_float32, with_gradients in ((False, True), (True, True), (True, False)):
        mode = FlopMode(_MOST_OPERATORS)
        inputs = _Inputs(as_float32, with_gradients)
        try:
            with torch.enable_grad(), mode:
                outputs = inputs.call(call)
        except TooManyOperatorsError:
            return Flops(operators=mode.operators)
        except Exception:
            tried += mode.operators
            continue
        backward = _count_backward(outputs, inputs.leaves)
        operators = tried + mode.operators + backward.operators
        return Flops(mode.flops, backward.flops, operators)
    return Flops(operators=tried)


def _count_backward(outputs: object, leaves: list[torch.Tensor]) -> FlopMode:
    mode = FlopMode(_MOST_OPERATORS)
    results = [t for t in tensors_in((outputs,)) if t.grad_fn is not None]
    if results and leaves:
        gradients = list(map(torch.empty_like, results))
        try:
            with mode:
                torch.autograd.grad(results, leaves, gradients, allow_unused=True)
        except Exception:
            mode.flops = 0
    return mode


class _Inputs:
    """Makes the arguments of a call, with tensors that have no elements.

    leaves: those that need a gradient.
    """

    def __init__(self, as_float32: bool, with_gradients: bool) -> None:
        self.leaves: list[torch.Tensor] = []
        self._as_float32 = as_float32
        self._with_gradients = with_gradients

    def call(self, call: CallDescription) -> Any:
        """Make the call."""
        args = [self._value(value) for value in call.args]
        kwargs = {name: self._value(value) for name, value in call.kwargs}
        return call.function(*args, **kwargs)

    def _value(self, value: object) -> object:
        if isinstance(value, TensorKind):
            return self._tensor(value)
        if isinstance(value, Items):
            values = map(self._value, value.values)
            return list(values) if value.is_list else tuple(values)
        return value

    def _tensor(self, kind: TensorKind) -> torch.Tensor:
        is_float = kind.dtype.is_floating_point
        dtype = torch.float32 if self._as_float32 and is_float else kind.dtype
        needs_grad = kind.needs_grad and self._with_gradients
        tensor = torch.empty(
            kind.shape, dtype=dtype, device="meta", requires_grad=needs_grad
        )
        if needs_grad:
            self.leaves.append(tensor)
        return tensor
