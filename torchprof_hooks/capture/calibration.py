"""What hooks cost on this machine, measured with a small model.

A hook costs more the more of its code and data the program's own work has pushed out of
the processor's caches: up to twice as much. So there are two figures for all costs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from time import perf_counter_ns
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch

from torchprof_hooks.capture.backward_pass import PassRequest
from torchprof_hooks.capture.backward_tracker import BackwardTracker
from torchprof_hooks.capture.function_tracker import FunctionTracker
from torchprof_hooks.capture.meter_tracker import MeterTracker
from torchprof_hooks.capture.tracker import Tracker
from torchprof_hooks.capture.trial_model import (
    LAYERS,
    Layer,
    Run,
    Times,
    TrialModel,
    trial_input,
)

#: The fastest of these rounds counts: other programs may disturb the rest.
_ROUNDS: Final = 5


class CallCost(NamedTuple):
    """Nanoseconds that measuring adds to a call: in its own time, and in that of its
    caller."""

    own_ns: float = 0.0
    caller_ns: float = 0.0


class Costs(NamedTuple):
    """What measuring adds to one call of a module, to one change of owner in a backward
    pass, to one call of a function (of torch's own that is compiled; of one that is
    written in Python, which torch shows to modes in a slower way), and to one call that
    a mode sees and that is no function (reading an attribute of a tensor)."""

    call: CallCost
    boundary_ns: float
    function: CallCost = CallCost()
    python_function: CallCost = CallCost()
    passed_over_ns: float = 0.0


class Calibration(NamedTuple):
    """Costs between calls that leave the caches alone, and between such that do not."""

    warm: Costs
    cold: Costs


_UNKNOWN: Final = Calibration(Costs(CallCost(), 0.0), Costs(CallCost(), 0.0))


def calibration_of(tracker: Tracker) -> Calibration:
    """What it costs that `tracker` measures. It takes some tenths of a second to see,
    for the first tracker of its kind in a process.

    This happens in a thread of its own, where trackers of other threads do not look.
    """
    if isinstance(tracker, MeterTracker):
        return _in_a_thread(MeterTracker, tracker.by_shapes)
    if isinstance(tracker, FunctionTracker):
        return _in_a_thread(FunctionTracker, tracker.by_shapes)
    kind = BackwardTracker if isinstance(tracker, BackwardTracker) else Tracker
    return _in_a_thread(kind)


@cache
def _in_a_thread(kind: type[Tracker], by_shapes: bool = False) -> Calibration:
    found: list[Calibration] = []

    def measure() -> None:
        with suppress(Exception):  # a cost that is not known must not cost the report
            found.append(_measure(kind, by_shapes))

    thread = threading.Thread(target=measure)
    try:
        thread.start()
        thread.join()
    except RuntimeError:  # some versions of Python start none when a program has ended
        measure()
    return found[0] if found else _UNKNOWN


def _measure(kind: type[Tracker], by_shapes: bool) -> Calibration:
    warm, cold = (_costs(_Trial(sweeps), kind, by_shapes) for sweeps in (False, True))
    return Calibration(warm, cold)


def _costs(trial: _Trial, kind: type[Tracker], by_shapes: bool) -> Costs:
    if not issubclass(kind, FunctionTracker):
        return trial.cost_of_modules(kind())
    options: dict[str, Any] = {"by_shapes": by_shapes}
    if issubclass(kind, MeterTracker):
        options["meters"] = ()  # reading them is measured where it is done
    costs = trial.cost_of_modules(kind(**options))
    return trial.with_functions(kind(**options), costs)


class _ShortestTimes(NamedTuple):
    """Of all rounds, layer by layer.

    inside_ns: of the layers' forwards, called past all hooks.
    spans_ns: what was measured of the innermost calls, one in each layer.
    """

    inside_ns: Times
    bare: Run
    hooked: Run
    spans_ns: Times

    @property
    def added_ns(self) -> Times:
        """What measuring adds to each forward."""
        return self.hooked.forward_ns - self.bare.forward_ns

    @property
    def in_own_time_ns(self) -> Times:
        """The part of it that is in the time of the call that is measured."""
        return self.spans_ns - self.inside_ns


class _Trial:
    """Runs a model as it is and, in turns with that, another one like it with the hooks
    of a tracker."""

    def __init__(self, sweeps: bool) -> None:
        self._bare, self._hooked = TrialModel(sweeps), TrialModel(sweeps)
        self._value = trial_input()

    def cost_of_modules(self, tracker: Tracker) -> Costs:
        """What calls of modules cost, and boundaries in backward."""
        times = self._rounds(tracker, nullcontext)
        backward_ns = times.hooked.backward_ns - times.bare.backward_ns
        # The work goes over from what is between two layers to a layer, and back. No
        # times: torch hides its engine.
        mean_ns = float(backward_ns.mean()) if len(backward_ns) else 0.0
        boundary_ns = max(mean_ns / 2, 0.0)
        call = _mean_cost(times.added_ns, times.in_own_time_ns, range(LAYERS))
        return Costs(call, boundary_ns)

    def with_functions(self, tracker: FunctionTracker, costs: Costs) -> Costs:
        """What calls of functions cost besides those of modules."""
        times = self._rounds(tracker, lambda: _mode_of(tracker))
        added_ns, own_ns = times.added_ns - sum(costs.call), times.in_own_time_ns
        layers = list(enumerate(self._bare.layers))
        python = [n for n, layer in layers if layer.in_python]
        compiled = [n for n, layer in layers if not layer.in_python]
        return costs._replace(
            function=_mean_cost(added_ns, own_ns, compiled),
            python_function=_mean_cost(added_ns, own_ns, python),
            passed_over_ns=self._cost_of_passing_over_ns(tracker),
        )

    def _rounds(
        self, tracker: Tracker, enter: Callable[[], AbstractContextManager[None]]
    ) -> _ShortestTimes:
        """Both models in turns; sites are found in a round before.

        enter: what the hooked one is to run in.
        """
        inside, bare, hooked = [], [], []
        with _hooks_on(self._hooked, tracker), torch.enable_grad():
            with enter():
                self._run(self._hooked, tracker)
            for _ in range(_ROUNDS):
                inside.append(self._bare.inside(self._value, self._bare.sweeps))
                bare.append(self._run(self._bare))
                with enter():
                    hooked.append(self._run(self._hooked, tracker))
        return _ShortestTimes(
            np.min(inside, axis=0),
            _shortest(bare),
            _shortest(hooked),
            _innermost(tracker),
        )

    def _run(self, model: TrialModel, tracker: Tracker | None = None) -> Run:
        model(self._value, stops=model.sweeps)
        forward_ns = np.array(model.durations_ns)
        output = cast("torch.Tensor", model(self._value, stops=True))
        with _pass_of(tracker, output):
            return Run(forward_ns, model.backward(output))

    def _cost_of_passing_over_ns(self, tracker: FunctionTracker) -> float:
        bare, seen = [], []
        for _ in range(_ROUNDS):
            bare.append(self._time_passed_over())
            with _mode_of(tracker):
                seen.append(self._time_passed_over())
        return max(min(seen) - min(bare), 0) / LAYERS

    def _time_passed_over(self) -> int:
        start_ns = perf_counter_ns()
        for _ in range(LAYERS):
            self._value.dim()
        return perf_counter_ns() - start_ns


def _shortest(runs: Sequence[Run]) -> Run:
    """Of each part, the shortest time."""
    forward_ns = np.min([run.forward_ns for run in runs], axis=0)
    return Run(forward_ns, np.min([run.backward_ns for run in runs], axis=0))


def _mean_cost(added_ns: Times, own_ns: Times, layers: Sequence[int]) -> CallCost:
    """The mean cost of the calls in these layers."""
    chosen = list(layers)
    cost_ns = max(float(added_ns[chosen].mean()), 0.0)
    in_own_time_ns = min(max(float(own_ns[chosen].mean()), 0.0), cost_ns)
    return CallCost(in_own_time_ns, cost_ns - in_own_time_ns)


@contextmanager
def _hooks_on(model: TrialModel, tracker: Tracker) -> Iterator[None]:
    handles = []
    for module in (model, *model.layers):
        handles += [
            module.register_forward_pre_hook(tracker.forward_pre),
            module.register_forward_hook(tracker.forward_post, always_call=True),
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _mode_of(tracker: FunctionTracker) -> Iterator[None]:
    tracker.open_mode()
    try:
        yield
    finally:
        tracker.close_mode()


@contextmanager
def _pass_of(tracker: Tracker | None, output: torch.Tensor) -> Iterator[None]:
    if not isinstance(tracker, BackwardTracker):
        yield
        return
    tracker.begin_pass(PassRequest([output.grad_fn], False, False, -1))
    try:
        yield
    finally:
        tracker.end_pass(None, False)


def _innermost(tracker: Tracker) -> Times:
    """Nanoseconds of the shortest call in forward at each site in a layer that calls
    nothing, in the order of their first calls."""
    tracker.log.fold()
    log = tracker.log
    called = [
        (site, shortest_ns)
        for site, calls, shortest_ns in zip(
            tracker.sites, log.calls, log.min_ns, strict=False
        )
        if calls
        and site.phase == "forward"
        and isinstance(site.enclosing.living_module(), Layer)
    ]
    callers = {site.caller for site, _ in called}
    return np.array([time_ns for site, time_ns in called if site not in callers])
