"""What measuring itself costs, measured on this machine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from time import perf_counter_ns
from typing import Final, NamedTuple, cast

import numpy as np
import torch

from torchprof_hooks.capture.backward_pass import PassRequest
from torchprof_hooks.capture.backward_tracker import BackwardTracker
from torchprof_hooks.capture.function_tracker import FunctionTracker
from torchprof_hooks.capture.meter_tracker import MeterTracker
from torchprof_hooks.capture.torch_names.autograd import (
    run_engine,
)
from torchprof_hooks.capture.tracker import Tracker
from torchprof_hooks.profiles.names import CALLED_PHASES, Phase

_ROUNDS: Final = 9
_CALLS: Final = 100

#: Phases in which calls are told to hooks. A step of an optimizer, or a batch, costs
#: about as much as the call of a module.
_HOOKED_PHASES: Final[tuple[Phase, ...]] = (*CALLED_PHASES, "optimizer", "data")


class Costs(NamedTuple):
    """Nanoseconds that measuring adds to one module call (forward only, or with the
    ownership of backward), to one change of owner in a backward pass, to one function
    call (by name only, or with the shapes of its inputs), and to one call that a mode
    sees and that is no function (reading an attribute of a tensor)."""

    call_ns: float
    owning_call_ns: float
    boundary_ns: float
    function_ns: float
    shaped_function_ns: float
    passed_over_ns: float


def estimated_overhead_ns(tracker: Tracker) -> int:
    """How much longer the program ran because it was measured, as far as that can be
    told from counts: hooked calls times their cost. Planning backward passes is not in
    it: that is measured exactly, and booked on a row of its own."""
    module_calls = _calls(tracker, of_functions=False)
    function_calls = _calls(tracker, of_functions=True)
    if not module_calls and not function_calls:
        return 0
    costs = calibrated_costs()
    if not isinstance(tracker, BackwardTracker):
        return round(module_calls * costs.call_ns)
    overhead_ns = module_calls * costs.owning_call_ns
    overhead_ns += tracker.boundaries * costs.boundary_ns
    if isinstance(tracker, FunctionTracker):
        shaped = tracker.by_shapes
        function_ns = costs.shaped_function_ns if shaped else costs.function_ns
        overhead_ns += function_calls * function_ns
        overhead_ns += tracker.passed_over * costs.passed_over_ns
    if isinstance(tracker, MeterTracker):
        overhead_ns += tracker.readings * _cost_of_reading_ns(tracker)
    return round(overhead_ns)


def _calls(tracker: Tracker, of_functions: bool) -> int:
    return sum(
        int(calls)
        for site, calls in zip(tracker.sites, tracker.log.calls, strict=False)
        if site.phase in _HOOKED_PHASES and (site.function is not None) == of_functions
    )


def _cost_of_reading_ns(tracker: MeterTracker) -> float:
    """Measured when it is asked for: it depends on the state of the heap."""
    times = []
    for _ in range(_ROUNDS):
        start_ns = perf_counter_ns()
        tracker.try_reading()
        times.append(perf_counter_ns() - start_ns)
    return float(np.median(times))


@cache
def calibrated_costs() -> Costs:
    """Measure the costs; takes some milliseconds, once per process.

    This happens in a thread of its own, where trackers of other threads do not look.
    """
    found: list[Costs] = []
    thread = threading.Thread(target=lambda: found.append(_measure()))
    thread.start()
    thread.join()
    return found[0]


def _measure() -> Costs:
    return Costs(
        _cost_of_call_ns(Tracker()),
        _cost_of_call_ns(BackwardTracker()),
        _cost_of_boundary_ns(BackwardTracker()),
        _cost_of_function_ns(FunctionTracker()),
        _cost_of_function_ns(FunctionTracker(by_shapes=True)),
        _cost_of_function_ns(FunctionTracker(), torch.Tensor.dim),
    )


def _cost_of_call_ns(tracker: Tracker) -> float:
    bare, hooked = torch.nn.Identity(), torch.nn.Identity()
    hooked.register_forward_pre_hook(tracker.forward_pre)
    hooked.register_forward_hook(tracker.forward_post, always_call=True)
    return _difference_ns(
        lambda: _time_calls(lambda: bare(0)), lambda: _time_calls(lambda: hooked(0))
    )


def _cost_of_function_ns(
    tracker: FunctionTracker, function: Callable[..., object] = torch.neg
) -> float:
    value = torch.zeros(1, device="cpu")

    def measured() -> float:
        tracker.open_mode()
        try:
            return _time_calls(lambda: function(value))
        finally:
            tracker.close_mode()

    return _difference_ns(lambda: _time_calls(lambda: function(value)), measured)


class _Double(torch.nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + value


def _cost_of_boundary_ns(tracker: BackwardTracker) -> float:
    bare, hooked = _Double(), _Double()
    hooked.register_forward_pre_hook(tracker.forward_pre)
    hooked.register_forward_hook(tracker.forward_post, always_call=True)

    def measured() -> float:
        output = _chain(hooked)
        tracker.begin_pass(PassRequest([output.grad_fn], False, False, -1))
        try:
            return _time_backward(output)
        finally:
            tracker.end_pass(None, False)

    return _difference_ns(lambda: _time_backward(_chain(bare)), measured)


def _chain(module: torch.nn.Module) -> torch.Tensor:
    with torch.enable_grad():
        value = torch.zeros(1, device="cpu", requires_grad=True)
        for _ in range(_CALLS):
            value = cast("torch.Tensor", module(value))
    return value


def _time_backward(output: torch.Tensor) -> float:
    gradient = torch.zeros_like(output)
    start_ns = perf_counter_ns()
    run_engine(output, gradient)
    return (perf_counter_ns() - start_ns) / _CALLS


def _time_calls(call: Callable[[], object]) -> float:
    start_ns = perf_counter_ns()
    for _ in range(_CALLS):
        call()
    return (perf_counter_ns() - start_ns) / _CALLS


def _difference_ns(bare: Callable[[], float], hooked: Callable[[], float]) -> float:
    """Median of interleaved rounds: the machine's drift falls on both alike."""
    differences = []
    for _ in range(_ROUNDS):
        bare_ns = bare()
        differences.append(hooked() - bare_ns)
    return max(float(np.median(differences)), 0.0)
