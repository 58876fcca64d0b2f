"""Measures one thread in whole training steps: all of them, or some."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from torchprof_hooks.kernel.attachments import held_weakly
from torchprof_hooks.kernel.ended_steps import EndedSteps
from torchprof_hooks.kernel.schedule import Blocks, Kind
from torchprof_hooks.kernel.step_listeners import StepsOnTorch
from torchprof_hooks.kernel.steps import StepDetector
from torchprof_hooks.kernel.thread_profile import MakeTracker, ThreadProfile
from torchprof_hooks.kernel.tracker import Tracker

if TYPE_CHECKING:  # it takes long to import, and is needed when all is over
    from torchprof_hooks.profiles.data import ProfileData

#: `ThreadSteps.at_step` is called at most so often, unless it asks for each step.
TELL_EVERY_NS: Final = 100_000_000


class ThreadSteps:
    """Measures one thread from `start` to `stop`, and counts its steps.

    steps, every: see `Blocks`.
    at_step: called between two steps, with the number of steps and evaluation calls
        that have ended; returns whether the next step is disturbed, and is to be kept
        apart. It may call `stop`.
    ends_each_step: set it to have that called after each step, for now.
    """

    def __init__(
        self, make: MakeTracker, *, steps: int | None = None, every: int | None = None
    ) -> None:
        self._blocks = Blocks(steps, every)
        self.at_step: Callable[[int], bool | None] | None = None
        self.ends_each_step = False
        self._tell_at_ns = 0
        self._ended = EndedSteps(held_weakly(self._first_step_ended))
        self._detector = StepDetector(self._ended, held_weakly(self._step_ended))
        self._aside_ns = 0  # when the work began that is aside; 0: none is
        self._profile = ThreadProfile(make, self._blocks)
        self._on_torch = StepsOnTorch(self._profile, self._detector)
        self._expect(self._blocks.kind)

    @property
    def tracker(self) -> Tracker:
        """What measures."""
        return self._profile.tracker

    @property
    def steps(self) -> int:
        """How many steps and evaluation calls have ended."""
        return self._ended.all

    def start(self) -> None:
        """Begin; or go on after `stop`."""
        self._on_torch.open()
        self._ended.clock.start()
        self._profile.wall.began_ns = perf_counter_ns()
        self._on_torch.time_begins()

    def stop(self, by_exception: bool = False) -> None:
        """End, maybe in the middle of a step."""
        self._ended.clock.stop()
        self._on_torch.time_ends()
        self._on_torch.shown.abort_all(by_exception)
        self._profile.wall.book()
        self._profile.wall.began_ns = 0  # what comes is ours
        self._on_torch.close()
        if self._blocks.kind is Kind.TRACED:  # the trace ends with it
            self._expect(self._blocks.usual)

    def step(self) -> None:
        """The program says that a step ends here."""
        now_ns, tracker = perf_counter_ns(), self._on_torch.shown
        if self._blocks.kind is Kind.COUNTED:
            self._detector.step(False, now_ns)
            return
        with tracker.our_work():
            self._detector.step(tracker.site is not tracker.outside, now_ns)

    def end(self, end_ns: int) -> None:
        """The program has ended: no step comes any more. Close open calls, as of the
        moment when they were last known to run."""
        if self.tracker.works_here():
            self.tracker.abort_all(by_exception=False)
        self._ended.clock.stop(end_ns)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What this thread does inside is profiler overhead, and no part of a step."""
        tracker, wall = self.tracker, self._profile.wall
        if self._aside_ns or not (wall.began_ns and tracker.works_here()):
            yield  # it is so already, or is done in another thread
            return
        entered_ns = tracker.entered_ns
        began_ns = self._aside_ns = wall.book()
        try:
            yield
        finally:
            self._aside_ns = 0
            if wall.began_ns:  # else measuring has ended in there
                ended_ns = wall.book(Kind.MEASURED)
                tracker.book_our_work(began_ns, ended_ns, entered_ns)
                self._ended.clock.left_out_ns += ended_ns - began_ns

    def profile(self, end_ns: int | None = None) -> ProfileData:
        """Everything measured so far; steps that were not are a part of their own.

        end_ns: when the time of the thread ended, if that is not now.
        """
        return self._profile.read(self._ended.read(), end_ns or self._aside_ns or None)

    # What is notified

    def _first_step_ended(self) -> None:
        self._profile.keep_first(self._ended.read())

    def _step_ended(self) -> None:
        """Between two steps: go on with them, or with a block of another kind."""
        blocks, now_ns = self._blocks, perf_counter_ns()
        is_due = self.ends_each_step or now_ns >= self._tell_at_ns
        tell = self.at_step if is_due else None
        next_kind = blocks.next_kind(self._ended.steps)
        if tell is None and next_kind is blocks.kind:
            return
        with self.aside():
            if tell is not None:
                self._tell_at_ns = now_ns + TELL_EVERY_NS
                next_kind = Kind.TRACED if tell(self.steps) else next_kind
            if self._profile.wall.began_ns and next_kind is not blocks.kind:
                self._on_torch.leave()
                self._expect(next_kind)
                self._on_torch.open()
                self._on_torch.time_begins()

    def _expect(self, kind: Kind) -> None:
        """Steps of this kind come."""
        self._on_torch.expect(kind)
        self._blocks.go_on(kind, self._ended.steps, self._profile.counters)
