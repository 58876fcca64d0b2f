"""Who is told of the steps of a thread by torch: those that are followed call by call,
and those that are only counted. And what is known of the optimizers that step."""

from __future__ import annotations

import inspect
import weakref
from _thread import get_ident
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch

from torchprof_hooks.instruments.interruptions import (
    garbage_callback,
    optimizer_hooks,
)
from torchprof_hooks.kernel.attachments import attachments
from torchprof_hooks.kernel.engine import engine_patch
from torchprof_hooks.kernel.steps import StepDetector
from torchprof_hooks.kernel.subscriptions import TrackerSubscription
from torchprof_hooks.kernel.torch_names.autograd import current_graph_task
from torchprof_hooks.kernel.torch_names.tensors import device_type_of
from torchprof_hooks.kernel.tracker import Tracker
from torchprof_hooks.profiles.optimizers import OptimizerFacts

if TYPE_CHECKING:
    from torchprof_hooks.profiles.program import ProgramFacts


def read_optimizer(optimizer: Any) -> OptimizerFacts:
    """Facts about `optimizer`, which may lack the attributes that torch's own have."""
    groups = getattr(optimizer, "param_groups", [])
    parameters = [each for group in groups for each in group.get("params", ())]
    devices = {device_type_of(each) for each in parameters}
    options = inspect.signature(type(optimizer).__init__).parameters
    is_differentiable = any(group.get("differentiable") for group in groups)
    return OptimizerFacts(
        type(optimizer).__name__,
        len(parameters),
        "fused" in options and not is_differentiable,
        any(group.get("fused") for group in groups),
        devices.pop() if len(devices) == 1 else "",
    )


def together(every: Iterable[OptimizerFacts]) -> tuple[OptimizerFacts, ...]:
    """The facts, merged for optimizers that differ only in the number of tensors."""
    found: dict[OptimizerFacts, OptimizerFacts] = {}
    for each in every:
        kind = each._replace(parameters=0, optimizers=0)
        known = found.get(kind, kind)
        found[kind] = kind._replace(
            parameters=known.parameters + each.parameters,
            optimizers=known.optimizers + each.optimizers,
        )
    return tuple(found.values())


class FollowedSteps(TrackerSubscription):
    """Shows the steps of a thread to a tracker, and the detector where they may end,
    from `open` to `close`."""

    def __init__(self, tracker: Tracker, detector: StepDetector) -> None:
        super().__init__(tracker, optimizers=False)
        self._detector = detector
        self._optimizers: dict[int, OptimizerFacts] = {}  # by their ids
        self._detects_anomalies = False

    def open(self) -> None:
        attachments.attach(optimizer_hooks, self)
        self.tracker.on_pause = self._detector.call_ended
        super().open()

    def close(self, by_exception: bool = False) -> None:
        attachments.detach(garbage_callback, self.tracker)
        attachments.detach(optimizer_hooks, self)
        super().close(by_exception)
        self.tracker.on_pause = None

    def facts(self) -> ProgramFacts:
        """What is known of the program besides its times."""
        from torchprof_hooks.profiles.program import ProgramFacts

        return ProgramFacts(
            together(self._optimizers.values()),
            self._detects_anomalies or torch.is_anomaly_enabled(),
        )

    # What optimizers tell

    def optimizer_pre(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.tracker.optimizer_pre(optimizer, args, kwargs)

    def optimizer_post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        ended_ns = perf_counter_ns()
        self.tracker.optimizer_post(optimizer, args, kwargs)
        if self.tracker.works_here():
            with self.tracker.our_work():
                self._stepped(optimizer, ended_ns)

    def _stepped(self, optimizer: Any, ended_ns: int) -> None:
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = read_optimizer(optimizer)
        self._detects_anomalies |= torch.is_anomaly_enabled()
        site = self.tracker.site
        is_inside = site is not self.tracker.outside
        if not (site.is_loading or (is_inside and self.tracker.is_in_optimizer())):
            self._detector.optimizer_stepped(optimizer, is_inside, ended_ns)

    def begin_closure(self) -> Callable[[], object]:
        return self.tracker.begin_closure()


def _nothing() -> None:
    """A reference to nothing."""


class CountedSteps:
    """Tells the detector of optimizers' steps in this thread, from `open` to `close`;
    and of backward passes, if these may end steps."""

    def __init__(self, detector: StepDetector) -> None:
        self._detector = detector
        self._thread = get_ident()
        self.passes: list[None] = []  # of those that run, nothing is kept
        self._stepping: Callable[[], Any] = _nothing  # the outermost optimizer

    def open(self) -> None:
        if self._detector.is_told:
            return
        attachments.attach(optimizer_hooks, self)
        if self._detector.needs_passes():
            attachments.attach(engine_patch, self)

    def close(self) -> None:
        attachments.detach(optimizer_hooks, self)
        attachments.detach(engine_patch, self)

    def works_here(self) -> bool:
        """Whether the running thread is the one whose steps are counted, or one of the
        engine's, in a pass of that."""
        is_home = get_ident() == self._thread
        return is_home or (bool(self.passes) and current_graph_task() != -1)

    # What passes and optimizers tell

    def begin_pass(self, request: object) -> None:
        if current_graph_task() == -1:
            self.passes.clear()  # an interrupt may have left some
        self.passes.append(None)

    def end_pass(self, outputs: object, failed: bool) -> None:
        del self.passes[-1:]  # an interrupt may have cleared it
        if not (failed or self.passes):
            self._detector.pass_ended(False, perf_counter_ns())

    def optimizer_pre(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._stepping() is None:
            self._stepping = weakref.ref(optimizer)

    def optimizer_post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._stepping() is optimizer and self.works_here():
            self._stepping = _nothing  # else another one has called it
            in_pass = current_graph_task() != -1
            self._detector.optimizer_stepped(optimizer, in_pass, perf_counter_ns())

    def begin_closure(self) -> Callable[[], object]:
        return bool  # does nothing
