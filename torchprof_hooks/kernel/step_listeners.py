"""Who notifies the detector of the steps of a thread: of those that are followed call
by call, and of those that are only counted."""

from __future__ import annotations

import weakref
from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from torchprof_hooks.kernel.attachments import attachments
from torchprof_hooks.kernel.optimizer_hooks import optimizer_hooks
from torchprof_hooks.kernel.passes import engine_patch
from torchprof_hooks.kernel.steps import StepDetector
from torchprof_hooks.kernel.subscriptions import TrackerSubscription
from torchprof_hooks.kernel.torch_names.autograd import current_graph_task
from torchprof_hooks.kernel.tracker import Tracker


class FollowedSteps(TrackerSubscription):
    """Shows the steps of a thread to a tracker, and the detector where they may end,
    from `open` to `close`."""

    def __init__(self, tracker: Tracker, detector: StepDetector) -> None:
        super().__init__(tracker, optimizers=False)
        self._detector = detector

    def open(self) -> None:
        attachments.attach(optimizer_hooks, self)
        self.tracker.on_pause = self._detector.call_ended
        super().open()

    def close(self, by_exception: bool = False) -> None:
        for observer in self.tracker.observers:
            observer.time_ends()
        attachments.detach(optimizer_hooks, self)
        super().close(by_exception)
        self.tracker.on_pause = None

    # What optimizers do

    def optimizer_pre(self, optimizer: Any) -> None:
        self.tracker.optimizer_pre(optimizer)

    def optimizer_post(self, optimizer: Any) -> None:
        tracker, ended_ns = self.tracker, perf_counter_ns()
        tracker.optimizer_post(optimizer)
        if tracker.works_here():
            with tracker.our_work():
                is_inside = tracker.site is not tracker.outside
                is_nested = is_inside and tracker.is_in_optimizer()
                if not (tracker.site.is_loading or is_nested):
                    self._detector.optimizer_stepped(optimizer, is_inside, ended_ns)

    def begin_closure(self) -> Callable[[], object]:
        return self.tracker.begin_closure()


def _nothing() -> None:
    """A reference to nothing."""


class CountedSteps:
    """Notifies the detector of optimizers' steps in this thread, from `open` to
    `close`; and of backward passes, if these may end steps."""

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

    # Passes and optimizers

    def begin_pass(self, request: object) -> None:
        if current_graph_task() == -1:
            self.passes.clear()  # an interrupt may have left some
        self.passes.append(None)

    def end_pass(self, outputs: object, failed: bool) -> None:
        del self.passes[-1:]  # an interrupt may have cleared it
        if not (failed or self.passes):
            self._detector.pass_ended(False, perf_counter_ns())

    def optimizer_pre(self, optimizer: Any) -> None:
        if self._stepping() is None:
            self._stepping = weakref.ref(optimizer)

    def optimizer_post(self, optimizer: Any) -> None:
        if self._stepping() is optimizer and self.works_here():
            self._stepping = _nothing  # else another one has called it
            in_pass = current_graph_task() != -1
            self._detector.optimizer_stepped(optimizer, in_pass, perf_counter_ns())

    def begin_closure(self) -> Callable[[], object]:
        return bool  # does nothing
