"""What is on torch for the steps of a thread, and notifies the detector of these: of
those that are followed call by call, and of those that are only counted."""

from __future__ import annotations

import weakref
from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from torchprof_hooks.kernel.attachments import attachments
from torchprof_hooks.kernel.optimizer_hooks import optimizer_hooks
from torchprof_hooks.kernel.passes import engine_patch
from torchprof_hooks.kernel.schedule import Kind
from torchprof_hooks.kernel.steps import StepDetector
from torchprof_hooks.kernel.subscriptions import TrackerSubscription
from torchprof_hooks.kernel.thread_profile import ThreadProfile
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
                is_nested = is_inside and any(
                    site.phase == "optimizer" for site in tracker.open_sites()
                )
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


class StepsOnTorch:
    """What is on torch for the steps of a thread: something else for each kind.

    shown: what is shown the steps; while they are only counted, what measures.
    """

    def __init__(self, profile: ThreadProfile, detector: StepDetector) -> None:
        self._profile, self._detector = profile, detector
        self._measured = FollowedSteps(profile.tracker, detector)
        self._counted = CountedSteps(detector)
        self._now: CountedSteps | FollowedSteps = self._measured
        self._left: CountedSteps | FollowedSteps | None = None  # is about to be closed
        self.shown = profile.tracker

    def expect(self, kind: Kind) -> None:
        """Steps of this kind come."""
        self.shown, self._now = self._profile.tracker, self._measured
        if kind is Kind.TRACED:  # what is measured of them is not kept
            self.shown = self._profile.make_tracker(measures=False)
            self._now = FollowedSteps(self.shown, self._detector)
        elif kind is Kind.COUNTED:
            self._now = self._counted
        followed = None if kind is Kind.COUNTED else self.shown
        self._detector.follow(followed, self._profile.counters[kind])

    def open(self) -> None:
        """Put on torch what the steps that come need."""
        self._now.open()  # first: what is on torch for both stays there
        self._close_left()

    def close(self) -> None:
        """Take it off again."""
        self._now.close()
        self._close_left()

    def leave(self) -> None:
        """Steps of another kind are about to be expected."""
        self._close_left()
        self._left = self._now

    def _close_left(self) -> None:
        """Take off torch what the steps before needed, also after an interrupt."""
        if self._left is not None and self._left is not self._now:
            self._left.close()
        self._left = None

    def time_begins(self) -> None:
        """Notify observers that time counts from now on."""
        for observer in self.shown.observers if self._now is not self._counted else ():
            observer.time_begins()

    def time_ends(self) -> None:
        """Notify observers that time does not count any more."""
        for observer in self.shown.observers:
            observer.time_ends()
