"""How many floating-point operations the calls at each site took."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import inf
from time import perf_counter_ns
from typing import Any, Final

import torch

from torchprof_hooks.capture.functions.aside import do_aside
from torchprof_hooks.capture.functions.call_description import CallDescription, Items
from torchprof_hooks.capture.functions.products import Flops, flops_by_shapes
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.torch_names.functions import tensors_in
from torchprof_hooks.capture.torch_names.inputs import TensorKind
from torchprof_hooks.capture.torch_names.torch_utils import (
    FlopMode,
    TooManyOperatorsError,
    can_count_flops,
    is_compiler_loaded,
)

#: Operators that one call may come down to, forward or backward.
_MOST_OPERATORS: Final = 4_000
#: How many operators may be called for one profile, about: some seconds at most.
_MOST_OPERATORS_IN_ALL: Final = 20_000
#: What it takes to run the first function, about: torch loads its compiler.
_LOADING_S: Final = 1.0


class FlopCount:
    """The floating-point operations of calls, each kind of call looked at once.

    Only what torch has a formula for is counted, and only in calls that could be
    described. For most functions, the shapes of inputs tell; others are run to find
    out, on tensors without elements.

    patience_s: how long functions may be run, in all.
    left_out: names of functions that were not run, for the lack of patience.
    runs: how many calls were run.
    """

    def __init__(self, patience_s: float = inf) -> None:
        self.left_out: set[str] = set()
        self.runs = 0
        self._patience_s = patience_s
        self._operators_left = _MOST_OPERATORS_IN_ALL
        self._known: dict[CallDescription, Flops] = {}

    def without_patience(self) -> FlopCount:
        """A count that runs nothing: of what is known already, and what shapes tell."""
        other = FlopCount(0.0)
        other._known = self._known
        return other

    def flops_of_sites(self, sites: Sequence[Site], calls: Sequence[int]) -> list[int]:
        """Floating-point operations of all calls at each site, given their numbers."""
        numbers: Counter[CallDescription] = Counter()
        for site, number in zip(sites, calls, strict=True):
            if site.described is not None and number:
                numbers[site.described] += number
        if numbers and can_count_flops():
            # Not all may be run: those called most often come first.
            self._look_at([call for call, _ in numbers.most_common()])
        return [self._flops(*each) for each in zip(sites, calls, strict=True)]

    def _flops(self, site: Site, calls: int) -> int:
        if site.described is None or site.described not in self._known:
            return 0
        flops = self._known[site.described]
        return calls * (flops.backward if site.phase == "backward" else flops.forward)

    def _look_at(self, calls: list[CallDescription]) -> None:
        unknown = []
        for call in calls:
            if call not in self._known:
                found = flops_by_shapes(call)
                if found is None:
                    unknown.append(call)
                else:
                    self._known[call] = found
        if unknown:
            self._run_all(unknown)

    def _run_all(self, calls: list[CallDescription]) -> None:
        def run() -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # given already, for the call itself
                for call in calls:
                    if not self._run(call):
                        self.left_out.add(getattr(call.function, "__name__", "?"))

        do_aside(run)

    def _run(self, call: CallDescription) -> bool:
        """Run `call` if there is patience for it; whether there was."""
        needed_s = 0.0 if is_compiler_loaded() else _LOADING_S
        if self._patience_s <= needed_s or self._operators_left < 0:
            return False
        began_ns = perf_counter_ns()
        self.runs += 1
        self._known[call] = flops = run_call(call)
        self._operators_left -= flops.operators
        self._patience_s -= (perf_counter_ns() - began_ns) / 1e9
        return True


@lru_cache(maxsize=4096)
def run_call(call: CallDescription) -> Flops:
    """Floating-point operations of one call and of its backward, seen by running it.

    A call that fails is tried again: autocast may have converted its inputs to one
    type; or it changes a leaf in place, which must not need a gradient then.
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
