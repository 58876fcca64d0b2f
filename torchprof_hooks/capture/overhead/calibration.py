"""What hooks cost on this machine, measured with a small model.

A hook costs up to twice as much where the program's own work has pushed the hook's code
and data out of the processor's caches. So there are two figures for all costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from time import perf_counter_ns
from typing import Final, NamedTuple

import numpy as np
import torch

from torchprof_hooks.capture.functions.aside import do_aside
from torchprof_hooks.capture.functions.function_calls import FunctionCalls
from torchprof_hooks.capture.overhead.trial_model import (
    LAYERS,
    NODES,
    Times,
    TrialModel,
    trial_input,
)
from torchprof_hooks.capture.overhead.trial_runs import (
    MeasuredRuns,
    TrialRuns,
    mode_of,
    shortest,
)
from torchprof_hooks.capture.tracking.make_tracker import new_tracker
from torchprof_hooks.capture.tracking.meters.memory import memory_counter, memory_meter
from torchprof_hooks.capture.tracking.meters.meters import Meters, counts_tensors
from torchprof_hooks.capture.tracking.tracker import Tracker

#: Of each layer the fastest of these rounds counts, as other programs may disturb the
#: rest; and of the layers the median: all rounds of one may have been disturbed, and
#: the first ones are always slow.
_ROUNDS: Final = 8
#: Fewer, where caches are swept: these rounds take ten times as long, and a program
#: waits for them when it ends.
_SWEEPING_ROUNDS: Final = 4


class CallCost(NamedTuple):
    """Nanoseconds that measuring adds to a call: in its own time, and in that of its
    caller."""

    own_ns: float = 0.0
    caller_ns: float = 0.0


class Costs(NamedTuple):
    """What measuring adds to one call of a module, to one change of owner in a backward
    pass (a boundary), and to one call of a function of torch's: in C++, or in Python,
    which torch shows to modes in a slower way.

    node_ns: to one node of a backward pass, where the core is told of each.
    hook_ns: how long a hook itself took in these trials (see `mean_hook_ns`).
    """

    call: CallCost
    boundary_ns: float
    function: CallCost = CallCost()
    python_function: CallCost = CallCost()
    node_ns: float = 0.0
    hook_ns: float = 0.0


class Calibration(NamedTuple):
    """Costs where work between calls leaves the caches alone (warm), and where it does
    not (cold); and of one call that a mode sees and that is no function (reading an
    attribute of a tensor)."""

    warm: Costs
    cold: Costs
    passed_over_ns: float = 0.0


_UNKNOWN: Final = Calibration(Costs(CallCost(), 0.0), Costs(CallCost(), 0.0))


class Kind(NamedTuple):
    """What costs depend on: what a tracker does for each call.

    tensors: whether the core counts the memory of tensors.
    """

    backward: bool = True
    functions: bool = False
    by_shapes: bool = False
    meters: bool = False
    tensors: bool = False


def calibration_of(tracker: Tracker) -> Calibration:
    """What it costs that `tracker` measures. For the first tracker of its kind in a
    process, that is tried out, which takes some tenths of a second.

    It happens in a thread of its own, which trackers of other threads do not follow.
    """
    return _in_a_thread(_kind_of(tracker))


def _kind_of(tracker: Tracker) -> Kind:
    by_shapes, tensors = tracker.by_shapes, counts_tensors(tracker)
    if tracker.reads_meters:
        return Kind(functions=True, by_shapes=by_shapes, meters=True, tensors=tensors)
    if tracker.functions is not None:
        return Kind(functions=True, by_shapes=by_shapes, tensors=tensors)
    return Kind(backward=tracker.backward is not None, tensors=tensors)


@cache
def _in_a_thread(kind: Kind) -> Calibration:
    found: list[Calibration] = []

    def measure() -> None:
        with suppress(Exception):  # a cost that is not known must not cost the report
            found.append(_measure(kind))

    do_aside(measure)
    return found[0] if found else _UNKNOWN


def _measure(kind: Kind) -> Calibration:
    def make() -> Tracker:
        functions = FunctionCalls(by_shapes=kind.by_shapes) if kind.functions else None
        meters = [memory_meter(memory_counter("cpu"))] if kind.tensors else []
        tracker = new_tracker(
            backward=kind.backward, functions=functions, meters=meters
        )
        if kind.meters:
            # But none to read: what reading takes is timed where it is done.
            tracker.meters = Meters(())
            tracker.reads_meters = True
        return tracker

    with torch.enable_grad():
        warm = _Trial(make, sweeps=False).costs()
        cold = _Trial(make, sweeps=True).costs()
    if not kind.functions:
        return Calibration(warm, cold)
    return Calibration(warm, cold, _cost_of_passing_over_ns(make()))


class _Trial:
    """Runs equal models in turns: one as it is; one whose modules a tracker sees; and,
    if trackers of the kind follow functions, one whose functions are seen as well."""

    def __init__(self, make: Callable[[], Tracker], sweeps: bool) -> None:
        self._rounds = _SWEEPING_ROUNDS if sweeps else _ROUNDS
        self._bare = TrialRuns(TrialModel(sweeps))
        self._modules = MeasuredRuns(sweeps, make())
        self._functions: MeasuredRuns | None = None
        if (tracker := make()).functions is not None:
            self._functions = MeasuredRuns(sweeps, tracker, sees_functions=True)
        self._inside: list[Times] = []

    def costs(self) -> Costs:
        """What calls, nodes and boundaries cost."""
        self._run_in_turns()
        every = range(LAYERS)
        # A module's call is timed from outside, with torch's way to its forward; that
        # of a function, by what the function itself takes.
        call_ns, inside_ns = self._bare.forward_ns, shortest(self._inside)
        call = self._cost_of_call(self._bare, self._modules, call_ns, every)
        node_ns, boundary_ns = self._costs_in_backward_ns()
        costs = Costs(call, boundary_ns, node_ns=node_ns, hook_ns=self._modules.hook_ns)
        if self._functions is None:
            return costs
        layers = self._bare.model.layers
        function, python_function = (
            self._cost_of_call(
                self._modules,
                self._functions,
                inside_ns,
                [n for n in every if layers[n].in_python == in_python],
            )
            for in_python in (False, True)
        )
        return costs._replace(function=function, python_function=python_function)

    def _run_in_turns(self) -> None:
        value = trial_input()
        variants = [self._bare, self._modules]
        if self._functions is not None:
            variants.append(self._functions)
        for variant in variants:  # so that sites are known
            variant.run(value)
            variant.forget()
        for _ in range(self._rounds):
            self._inside.append(self._bare.model.inside(value))
            for variant in variants:
                variant.run(value)

    def _cost_of_call(
        self,
        unseen: TrialRuns,
        seen: MeasuredRuns,
        alone_ns: Times,
        layers: Sequence[int],
    ) -> CallCost:
        """The cost of the innermost calls in these layers, which a tracker has seen in
        one variant and not in the other.

        alone_ns: what these calls take where nobody looks.
        """
        cost_ns = _median(seen.forward_ns - unseen.forward_ns, layers)
        own_ns = _median(seen.innermost_ns() - alone_ns, layers)
        own_ns = min(own_ns, cost_ns)
        return CallCost(own_ns, cost_ns - own_ns)

    def _costs_in_backward_ns(self) -> tuple[float, float]:
        """Costs of a node and of a boundary.

        Between two stops that follow each other, one node is heard of, after work.
        Nodes more that lie between them come at once, as every other one of a pass
        does: what it does is little. So the mean of both counts. Around a layer, there
        are two boundaries (model to layer and back), and one such node more."""
        measured, bare = self._modules.backward, self._bare.backward
        layer_ns, nodes_ns, stop_ns = (
            _median(seen - unseen, range(len(seen)))
            for seen, unseen in zip(measured, bare, strict=True)
        )
        next_ns = max(nodes_ns - stop_ns, 0.0) / NODES
        if not self._modules.hears_nodes:
            next_ns = stop_ns = 0.0
        boundary_ns = max(layer_ns - stop_ns - next_ns, 0.0) / 2
        return (stop_ns + next_ns) / 2, boundary_ns


def _median(times_ns: Times, layers: Sequence[int]) -> float:
    """The median of these layers; 0 if it is below 0, which is noise, or if there are
    none, because torch hides its engine."""
    chosen = times_ns[list(layers)]
    return max(float(np.median(chosen)), 0.0) if len(chosen) else 0.0


def _cost_of_passing_over_ns(tracker: Tracker) -> float:
    value = trial_input()

    def time_ns() -> int:
        start_ns = perf_counter_ns()
        for _ in range(LAYERS):
            value.dim()
        return perf_counter_ns() - start_ns

    bare_ns, seen_ns = [], []
    for _ in range(_ROUNDS):
        bare_ns.append(time_ns())
        with mode_of(tracker):
            seen_ns.append(time_ns())
    return max(min(seen_ns) - min(bare_ns), 0) / LAYERS
