"""Measures all steps of a thread."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from torchprof_hooks.capture.attach.attachments import attachments, held_weakly
from torchprof_hooks.capture.attach.garbage import garbage_callback
from torchprof_hooks.capture.attach.optimizer_steps import optimizer_hooks
from torchprof_hooks.capture.record.step_counter import FirstReading, StepCounter
from torchprof_hooks.capture.sampling.steps.step_detector import StepDetector
from torchprof_hooks.capture.tracking.meters.device import DeviceMeter
from torchprof_hooks.capture.tracking.meters.meters import memory_sums, meters_of
from torchprof_hooks.capture.tracking.tap import Tap
from torchprof_hooks.capture.tracking.tracker import Tracker

if TYPE_CHECKING:  # imported when a profile is asked for
    from torchprof_hooks.profiles.data import ProfileData


def tell_of_step(
    detector: StepDetector, tracker: Tracker, optimizer: Any, now_ns: int
) -> None:
    """`optimizer` has stepped in the thread of `tracker`."""
    if tracker.site.phase == "data" and not tracker.follows_loading:
        return  # a part of loading
    is_inside_call = tracker.site is not tracker.outside
    if is_inside_call and tracker.is_in_optimizer():
        detector.rounds.inner_stepped(optimizer)
    else:
        detector.optimizer_stepped(optimizer, is_inside_call, now_ns)


class EveryStep:
    """Measures one thread from `start` to `stop`, and counts its steps.

    make: makes a tracker of this thread; also returns why the tracker does not measure
        memory, if it should.
    tracker: the one for the profile that is measured now.
    """

    def __init__(self, make: Callable[[], tuple[Tracker, str]]) -> None:
        self._make = make
        self._detector = StepDetector(on_first=held_weakly(self._first_step_ended))
        self._begin_profile()

    def _begin_profile(self) -> None:
        self.tracker, self._no_memory = self._make()
        self._detector.follow(self.tracker, StepCounter())
        self._tap = Tap(self.tracker, optimizers=False)
        self._first: FirstReading | None = None
        self._start_ns = 0  # 0: not running
        self._wall_ns = 0

    def renew(self) -> None:
        """After `stop`: begin another profile, of the steps that come."""
        self._detector.renew()
        self._begin_profile()

    def start(self) -> None:
        """Begin; or go on after `stop`."""
        attachments.attach(optimizer_hooks, self)
        self.tracker.on_pause = self._detector.call_ended
        self._tap.open()
        self._detector.start()
        self._start_ns = perf_counter_ns()
        attachments.attach(garbage_callback, self)  # only now is its time measured

    def stop(self, by_exception: bool = False) -> None:
        """End, maybe in the middle of a step."""
        self._detector.stop()
        attachments.detach(garbage_callback, self)
        attachments.detach(optimizer_hooks, self)
        self._tap.close(by_exception)
        self.tracker.on_pause = None
        # Both at once: an interrupt finds the time booked or still running.
        self._wall_ns, self._start_ns = self._wall_ns + self._age_ns(), 0

    def profile(self) -> ProfileData:
        """Everything measured so far."""
        from torchprof_hooks.capture.snapshot import take_snapshot

        return take_snapshot(
            self.tracker,
            lambda: self._wall_ns + self._age_ns(),
            self._no_memory,
            counted=self._detector.counted(),
            first=self._first,
        )

    def _first_step_ended(self) -> None:
        """Read all sums: later, the first step is not known apart any more."""
        for meter in meters_of(self.tracker, DeviceMeter):
            meter.mark()
        self._first = FirstReading(
            self.tracker.times(),
            memory_sums(self.tracker),
            self.tracker.garbage.copy(),
            self._wall_ns + self._age_ns(),
            self._detector.counter.after_backward_ns,
        )

    def _age_ns(self) -> int:
        """Time since `start`."""
        start_ns = self._start_ns  # once: another thread may read
        return perf_counter_ns() - start_ns if start_ns else 0

    def garbage_collected(self, took_ns: int) -> None:
        """Python has looked for garbage."""
        self.tracker.garbage_collected(took_ns)

    # What optimizers tell

    def optimizer_pre(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.tracker.optimizer_pre(optimizer, args, kwargs)

    def optimizer_post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.tracker.optimizer_post(optimizer, args, kwargs)
        if self.tracker.works_here():
            began_ns, around = perf_counter_ns(), self.tracker.site
            ended_ns = self.tracker.last_booked_ns() or perf_counter_ns()
            tell_of_step(self._detector, self.tracker, optimizer, ended_ns)
            now_ns = perf_counter_ns()
            around.reading_ns += now_ns - began_ns
            self.tracker.garbage.was_no_cost(around, began_ns, now_ns)

    def begin_closure(self) -> Callable[[], object]:
        return self.tracker.begin_closure()
