"""Measures one thread in whole training steps: all of them, or some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from torchprof_hooks.instruments.devices import DeviceMeter
from torchprof_hooks.instruments.interruptions import garbage_callback
from torchprof_hooks.instruments.memory.meter import memory_sums, meters_of
from torchprof_hooks.kernel.attachments import attachments, held_weakly
from torchprof_hooks.kernel.make_tracker import new_tracker
from torchprof_hooks.kernel.module_names import ModuleNames
from torchprof_hooks.kernel.schedule import Blocks, Kind
from torchprof_hooks.kernel.step_counter import FirstReading, StepCounter
from torchprof_hooks.kernel.step_listeners import CountedSteps, FollowedSteps
from torchprof_hooks.kernel.steps import StepDetector
from torchprof_hooks.kernel.tracker import Tracker
from torchprof_hooks.profiles.measured_steps import MeasuredSteps

if TYPE_CHECKING:  # it takes long to import, and is needed when all is over
    from torchprof_hooks.profiles.data import ProfileData
    from torchprof_hooks.profiles.program import ProgramFacts

#: Makes a tracker for the running thread; also returns why it does not measure memory,
#: if it should.
MakeTracker = Callable[[ModuleNames], tuple[Tracker, str]]

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
        self._make = make
        self._blocks = Blocks(steps, every)
        self.at_step: Callable[[int], bool | None] | None = None
        self.ends_each_step = False
        self._tell_at_ns = 0
        self._detector = StepDetector(
            held_weakly(self._step_ended), held_weakly(self._first_step_ended)
        )
        self._counted = CountedSteps(self._detector)
        self._left: CountedSteps | FollowedSteps | None = None  # is about to be closed
        self._aside_ns = 0  # when the work began that is aside; 0: none is
        self._begin_profile()

    def _begin_profile(self) -> None:
        self._names = ModuleNames()
        self._tracker, self._no_memory = self._make(self._names)
        self._measured = FollowedSteps(self._tracker, self._detector)
        self._traced: FollowedSteps | None = None  # while steps are traced
        self._counters = {kind: StepCounter() for kind in Kind}
        self._wall_ns = Counter[Kind]()
        self._began_ns = 0  # what comes after is not booked yet; 0: not running
        self._first: FirstReading | None = None
        self._expect(self._blocks.kind)

    @property
    def tracker(self) -> Tracker:
        """What measures."""
        return self._tracker

    @property
    def steps(self) -> int:
        """How many steps and evaluation calls have ended."""
        return self._detector.ended

    def renew(self) -> None:
        """After `stop`: begin another profile, of the steps that come. It keeps what it
        has learned of the program; the block goes on."""
        self._detector.renew()
        self._blocks.renew()
        self._begin_profile()

    def start(self) -> None:
        """Begin; or go on after `stop`."""
        self._open.open()
        self._detector.start()
        self._began_ns = perf_counter_ns()
        self._follow_garbage()  # only now is its time measured

    def stop(self, by_exception: bool = False) -> None:
        """End, maybe in the middle of a step."""
        self._detector.stop()
        attachments.detach(garbage_callback, self._shown)
        self._shown.abort_all(by_exception)
        self._book_time()
        self._began_ns = 0  # what comes is ours
        self._open.close()
        self._close_left()
        if self._blocks.kind is Kind.TRACED:  # the trace ends with it
            self._expect(self._blocks.usual)

    def step(self) -> None:
        """The program says that a step ends here."""
        now_ns, tracker = perf_counter_ns(), self._shown
        if self._blocks.kind is Kind.COUNTED:
            self._detector.step(False, now_ns)
            return
        with tracker.our_work():
            self._detector.step(tracker.site is not tracker.outside, now_ns)

    def close_left_calls(self) -> None:
        """Close open calls, as the program is ending: as of the moment when they were
        last known to run."""
        if self._tracker.works_here():
            self._tracker.abort_all(by_exception=False)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What this thread does inside is profiler overhead, and no part of a step."""
        tracker = self._tracker
        if self._aside_ns or not (self._began_ns and tracker.works_here()):
            yield  # it is so already, or is done in another thread
            return
        entered_ns = tracker.entered_ns
        began_ns = self._aside_ns = self._book_time()
        try:
            yield
        finally:
            self._aside_ns = 0
            if self._began_ns:  # else measuring has ended in there
                ended_ns = self._book_time(Kind.MEASURED)
                tracker.book_our_work(began_ns, ended_ns, entered_ns)
                self._detector.leave_out(ended_ns - began_ns)

    # Reading

    def facts(self) -> ProgramFacts:
        """What is known of the program besides its times."""
        return self._measured.facts()

    def profile(self, end_ns: int | None = None) -> ProfileData:
        """Everything measured so far; steps that were not are a part of their own.

        end_ns: when the time of the thread ended, if that is not now.
        """
        from torchprof_hooks.instruments.slow_steps import history_of
        from torchprof_hooks.kernel.snapshot import take_snapshot, with_unmeasured

        end_ns = end_ns or self._aside_ns or None
        kind, tracker = self._blocks.kind, self._tracker
        counters = {**self._counters, kind: self._detector.counted()}
        counted = counters[Kind.MEASURED].copy()
        found = take_snapshot(
            tracker,
            lambda: self._wall_so_far_ns(Kind.MEASURED, end_ns),
            self._no_memory,
            counted,
            first=self._first,
            end_ns=end_ns if kind is Kind.MEASURED else None,
        )
        traced = counters[Kind.TRACED]
        measured = MeasuredSteps(
            tuple(self._blocks.longer),
            traced.steps + traced.evaluations,
            self._wall_so_far_ns(Kind.TRACED, end_ns),
        )
        history = history_of(counted, tracker)
        found = replace(found, step_history=history, measured=measured)
        rest_ns = self._wall_so_far_ns(Kind.COUNTED, end_ns)
        return with_unmeasured(found, rest_ns, counters[Kind.COUNTED].times())

    # What the detector tells

    def _first_step_ended(self) -> None:
        """Read all sums: later ones do not show the first step by itself."""
        if self._blocks.kind is not Kind.MEASURED:
            return
        tracker = self._tracker
        for meter in meters_of(tracker, DeviceMeter):
            meter.mark(tracker.calls())
        self._first = FirstReading(
            tracker.times(),
            memory_sums(tracker),
            self._wall_so_far_ns(Kind.MEASURED),
            self._detector.counted(),
        )

    def _step_ended(self) -> None:
        """Between two steps: go on with them, or with a block of another kind."""
        kind, now_ns = self._blocks.kind, perf_counter_ns()
        if kind is Kind.MEASURED:
            for meter in meters_of(self._tracker, DeviceMeter):
                is_start = self._first is None
                meter.stamped_steps.step_ended(self._tracker.calls, is_start)
        is_told = self.at_step is not None and (
            self.ends_each_step or now_ns >= self._tell_at_ns
        )
        next_kind = self._blocks.next_kind(self._detector.steps)
        if is_told or next_kind is not kind:
            with self.aside():
                if is_told and self._tell(now_ns):
                    next_kind = Kind.TRACED
                if self._began_ns and next_kind is not kind:
                    self._change_to(next_kind)

    def _tell(self, now_ns: int) -> bool:
        """Call `at_step`; returns whether the next step is disturbed."""
        self._tell_at_ns = now_ns + TELL_EVERY_NS
        assert self.at_step is not None
        return bool(self.at_step(self.steps))

    # Kinds of steps, and who is shown their calls

    @property
    def _open(self) -> CountedSteps | FollowedSteps:
        """What is on torch."""
        is_counted = self._blocks.kind is Kind.COUNTED
        return self._counted if is_counted else self._traced or self._measured

    @property
    def _shown(self) -> Tracker:
        """What is shown the steps; while they are only counted, what measures."""
        return (self._traced or self._measured).tracker

    def _change_to(self, kind: Kind) -> None:
        """Between two steps: go on with those of another kind."""
        self._close_left()
        self._left = self._open
        self._expect(kind)
        self._open.open()  # first: what is on torch for both stays there
        self._close_left()
        self._follow_garbage()

    def _close_left(self) -> None:
        """Take off torch what the steps before needed, also after an interrupt."""
        if self._left is not None and self._left is not self._open:
            self._left.close()
        self._left = None

    def _expect(self, kind: Kind) -> None:
        """Steps of this kind come."""
        self._traced = None
        if kind is Kind.TRACED:  # what is measured of them is not kept
            self._traced = FollowedSteps(new_tracker(self._names), self._detector)
        followed = None if kind is Kind.COUNTED else self._shown
        self._detector.follow(followed, self._counters[kind])
        self._blocks.go_on(kind, self._detector.steps, self._counters)

    def _follow_garbage(self) -> None:
        if self._blocks.kind is not Kind.COUNTED:
            attachments.attach(garbage_callback, self._shown)

    # Time

    def _wall_so_far_ns(self, kind: Kind, end_ns: int | None = None) -> int:
        """The time of the steps of this kind, with that which is not booked yet."""
        began_ns = self._began_ns  # once: another thread may read
        if not began_ns or kind is not self._blocks.kind:
            return self._wall_ns[kind]
        return self._wall_ns[kind] + max((end_ns or perf_counter_ns()) - began_ns, 0)

    def _book_time(self, kind: Kind | None = None) -> int:
        """Book the time until now, which is that of steps of this kind, by default of
        the running ones. Returns when that is."""
        began_ns, now_ns = self._began_ns, perf_counter_ns()
        if began_ns:
            self._wall_ns[kind or self._blocks.kind] += now_ns - began_ns
            self._began_ns = now_ns
        return now_ns
