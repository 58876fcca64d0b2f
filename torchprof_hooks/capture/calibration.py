"""What hooks cost on this machine, measured with a small model.

A hook costs more the more of its code and data the program's own work has pushed out of
the processor's caches. So what is measured is not one call over and over, but a model
of many modules that call functions of torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from time import perf_counter_ns
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from torchprof_hooks.capture.backward_pass import PassRequest
from torchprof_hooks.capture.backward_tracker import BackwardTracker
from torchprof_hooks.capture.function_tracker import FunctionTracker
from torchprof_hooks.capture.meter_tracker import MeterTracker
from torchprof_hooks.capture.torch_names.autograd import run_engine
from torchprof_hooks.capture.torch_names.modules import call_without_global_hooks
from torchprof_hooks.capture.tracker import Tracker

Times = npt.NDArray[Any]

#: The fastest of these rounds counts: other programs may disturb the rest.
_ROUNDS: Final = 11
_LAYERS: Final = 60
_WIDTH: Final = 16


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


def calibrated_costs(tracker: Tracker) -> Costs:
    """What it costs that `tracker` measures. It takes some tens of milliseconds to see,
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
def _in_a_thread(kind: type[Tracker], by_shapes: bool = False) -> Costs:
    found: list[Costs] = []
    thread = threading.Thread(target=lambda: found.append(_measure(kind, by_shapes)))
    try:
        thread.start()
    except RuntimeError:  # some versions of Python start none when a program has ended
        return _measure(kind, by_shapes)
    thread.join()
    return found[0]


def _measure(kind: type[Tracker], by_shapes: bool) -> Costs:
    trial = _Trial()
    if not issubclass(kind, FunctionTracker):
        return trial.cost_of_modules(kind())
    options: dict[str, Any] = {"by_shapes": by_shapes}
    if issubclass(kind, MeterTracker):
        options["meters"] = ()  # reading them is measured where it is done
    costs = trial.cost_of_modules(kind(**options))
    return trial.with_functions(kind(**options), costs)


class _Quiet(torch.nn.Module):
    """A module that is nobody's business: hooks on all modules do not see its calls."""

    _call_impl = call_without_global_hooks()


class _Layer(_Quiet):
    """A module that calls one function, without any random numbers: these are the
    program's."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._kind = number % 5
        self._weight = torch.eye(_WIDTH, device="cpu", dtype=torch.float32)

    @property
    def calls_python(self) -> bool:
        """Whether the function is written in Python."""
        return self._kind in (1, 3)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        if self._kind == 0:
            return F.linear(value, self._weight)
        if self._kind == 1:
            return F.layer_norm(value, (_WIDTH,))
        if self._kind == 3:
            return F.relu(value)
        return F.gelu(value) if self._kind == 2 else value + value


class _Model(_Quiet):
    """Layers one after the other. `durations_ns` has what each took."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(map(_Layer, range(_LAYERS)))
        self.durations_ns: list[int] = []

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.durations_ns = durations_ns = []
        for layer in self.layers:
            start_ns = perf_counter_ns()
            value = layer(value)
            durations_ns.append(perf_counter_ns() - start_ns)
        return value


class _Run(NamedTuple):
    """Nanoseconds of a forward, layer by layer, and of its backward."""

    layers_ns: Times
    backward_ns: int

    @classmethod
    def shortest(cls, runs: Sequence[_Run]) -> _Run:
        """Of each part, the shortest time."""
        layers_ns = np.min([run.layers_ns for run in runs], axis=0)
        return cls(layers_ns, min(run.backward_ns for run in runs))


class _Trial:
    """Runs a model as it is and, in turns with that, another one like it with the hooks
    of a tracker."""

    def __init__(self) -> None:
        self._bare, self._hooked = _Model(), _Model()
        self._value = torch.ones(4, _WIDTH, device="cpu", dtype=torch.float32)
        self._gradient = torch.ones_like(self._value)
        self._value.requires_grad_()
        # Of the layers' forwards, called past all hooks.
        inside_ns = [self._time_inside() for _ in range(_ROUNDS)]
        self._inside_ns: Times = np.min(inside_ns, axis=0)

    def cost_of_modules(self, tracker: Tracker) -> Costs:
        """What calls of modules cost, and boundaries in backward."""
        bare, hooked = self._rounds(tracker, nullcontext)
        backward_ns = max(hooked.backward_ns - bare.backward_ns, 0)
        boundaries = sum(site.arrivals for site in tracker.sites) / (_ROUNDS + 1)
        return Costs(
            self._cost(tracker, hooked.layers_ns - bare.layers_ns, range(_LAYERS)),
            backward_ns / max(boundaries, 1),
        )

    def with_functions(self, tracker: FunctionTracker, costs: Costs) -> Costs:
        """What calls of functions cost besides those of modules."""
        bare, hooked = self._rounds(tracker, lambda: _mode_of(tracker))
        added_ns = hooked.layers_ns - bare.layers_ns - sum(costs.call)
        layers = cast("list[_Layer]", list(self._bare.layers))
        python = [n for n, layer in enumerate(layers) if layer.calls_python]
        compiled = [n for n, layer in enumerate(layers) if not layer.calls_python]
        return costs._replace(
            function=self._cost(tracker, added_ns, compiled),
            python_function=self._cost(tracker, added_ns, python),
            passed_over_ns=self._cost_of_passing_over_ns(tracker),
        )

    def _cost(
        self, tracker: Tracker, added_ns: Times, layers: Sequence[int]
    ) -> CallCost:
        """The mean of what was added to these layers, divided by whose time it was."""
        chosen = list(layers)
        in_own_time = _innermost(tracker) - self._inside_ns
        cost_ns = max(float(added_ns[chosen].mean()), 0.0)
        own_ns = min(max(float(in_own_time[chosen].mean()), 0.0), cost_ns)
        return CallCost(own_ns, cost_ns - own_ns)

    def _rounds(
        self, tracker: Tracker, enter: Callable[[], AbstractContextManager[None]]
    ) -> tuple[_Run, _Run]:
        """Of both models, the shortest times; sites are found in a round before.

        enter: what the hooked one is to run in.
        """
        bare, hooked = [], []
        with _hooks_on(self._hooked, tracker):
            with enter():
                self._run(self._hooked, tracker)
            for _ in range(_ROUNDS):
                bare.append(self._run(self._bare))
                with enter():
                    hooked.append(self._run(self._hooked, tracker))
        return _Run.shortest(bare), _Run.shortest(hooked)

    def _run(self, model: _Model, tracker: Tracker | None = None) -> _Run:
        with torch.enable_grad():
            output = cast("torch.Tensor", model(self._value))
        layers_ns = np.array(model.durations_ns)
        with _pass_of(tracker, output):
            start_ns = perf_counter_ns()
            run_engine(output, self._gradient)
            return _Run(layers_ns, perf_counter_ns() - start_ns)

    def _time_inside(self) -> list[int]:
        value, durations_ns = self._value, []
        for layer in self._bare.layers:
            forward = cast("_Layer", layer).forward
            start_ns = perf_counter_ns()
            value = forward(value)
            durations_ns.append(perf_counter_ns() - start_ns)
        return durations_ns

    def _cost_of_passing_over_ns(self, tracker: FunctionTracker) -> float:
        bare, seen = [], []
        for _ in range(_ROUNDS):
            bare.append(self._time_passed_over())
            with _mode_of(tracker):
                seen.append(self._time_passed_over())
        return max(min(seen) - min(bare), 0) / _LAYERS

    def _time_passed_over(self) -> int:
        start_ns = perf_counter_ns()
        for _ in range(_LAYERS):
            self._value.dim()
        return perf_counter_ns() - start_ns


@contextmanager
def _hooks_on(model: _Model, tracker: Tracker) -> Iterator[None]:
    handles = []
    for module in (model, *model.layers):
        handles += [
            module.register_forward_pre_hook(tracker.forward_pre),
            module.register_forward_hook(tracker.forward_post, always_call=True),
        ]
    yield
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
    """Nanoseconds of the shortest call in forward at each site that calls nothing, in
    the order of their first calls."""
    tracker.log.fold()
    log = tracker.log
    called = [
        (site, shortest_ns)
        for site, calls, shortest_ns in zip(
            tracker.sites, log.calls, log.min_ns, strict=False
        )
        if calls and site.phase == "forward"
    ]
    callers = {site.caller for site, _ in called}
    return np.array([time_ns for site, time_ns in called if site not in callers])
