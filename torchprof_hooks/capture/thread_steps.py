"""Measures one thread in whole training steps: all of them, or some."""

from __future__ import annotations

import weakref
from _thread import get_ident
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import torch

from torchprof_hooks.capture.attach.attachments import attachments, held_weakly
from torchprof_hooks.capture.attach.engine import engine_patch
from torchprof_hooks.capture.attach.garbage import garbage_callback
from torchprof_hooks.capture.attach.optimizer_steps import optimizer_hooks
from torchprof_hooks.capture.program_facts import read_optimizer, together
from torchprof_hooks.capture.record.module_names import ModuleNames
from torchprof_hooks.capture.record.step_counter import FirstReading, StepCounter
from torchprof_hooks.capture.steps import StepDetector
from torchprof_hooks.capture.torch_names.autograd import current_graph_task
from torchprof_hooks.capture.tracking.make_tracker import new_tracker
from torchprof_hooks.capture.tracking.meters.device import DeviceMeter
from torchprof_hooks.capture.tracking.meters.meters import memory_sums, meters_of
from torchprof_hooks.capture.tracking.subscriptions import TrackerSubscription
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.profiles.measured_steps import BLOCKS_KEPT, MeasuredSteps
from torchprof_hooks.profiles.names import (
    NOT_MEASURED_NAME,
    PROFILER_NAME,
    kind_of_other,
)
from torchprof_hooks.profiles.optimizers import OptimizerFacts

if TYPE_CHECKING:  # it takes long to import, and is needed when all is over
    from torchprof_hooks.profiles.cells import Cells
    from torchprof_hooks.profiles.data import ProfileData
    from torchprof_hooks.profiles.program import ProgramFacts

#: Makes a tracker for the running thread; also returns why it does not measure memory,
#: if it should.
MakeTracker = Callable[[ModuleNames], tuple[Tracker, str]]

#: `ThreadSteps.at_step` is called at most so often, unless it asks for each step.
TELL_EVERY_NS: Final = 100_000_000


class Kind(Enum):
    """What is done with the steps of a block."""

    MEASURED = "all that is wanted"
    COUNTED = "nothing is measured"
    TRACED = "they are disturbed, and kept apart"


def _nothing() -> None:
    """A reference to nothing."""


class _PassCounter:
    """Is told of backward passes as trackers are, and only tells when one has ended."""

    def __init__(self, ended: Callable[[bool, int], object]) -> None:
        self._ended = ended
        self._thread = get_ident()
        self.passes: list[None] = []

    def works_here(self) -> bool:
        """Whether the running thread is the one whose passes are counted, or one of the
        engine's, in such a pass."""
        is_home = get_ident() == self._thread
        return is_home or (bool(self.passes) and current_graph_task() != -1)

    def begin_pass(self, request: object) -> None:
        if current_graph_task() == -1:
            self.passes.clear()  # an interrupt may have left some
        self.passes.append(None)

    def end_pass(self, outputs: object, failed: bool) -> None:
        del self.passes[-1:]  # an interrupt may have cleared it
        if not (failed or self.passes):
            self._ended(False, perf_counter_ns())


class ThreadSteps:
    """Measures one thread from `start` to `stop`, and counts its steps.

    Steps come in blocks: of measured ones, and if only some are wanted, of others, in
    which nothing of ours is on torch but what counts them.

    steps, every: so many steps are measured, of each `every`; None: all, or once.
    at_step: called between two steps, with the number of steps and evaluation calls
        that have ended; returns whether the next step is disturbed, and is to be kept
        apart. It may call `stop`.
    ends_each_step: whether, for now, that is called after each step.
    """

    def __init__(
        self, make: MakeTracker, *, steps: int | None = None, every: int | None = None
    ) -> None:
        self._make = make
        rest = None if steps is None or every is None else every - steps
        self._lengths = {Kind.MEASURED: steps, Kind.COUNTED: rest, Kind.TRACED: 0}
        self.at_step: Callable[[int], bool | None] | None = None
        self.ends_each_step = False
        self._tell_at_ns = 0
        self._detector = StepDetector(
            held_weakly(self._step_ended), held_weakly(self._first_step_ended)
        )
        self._passes = _PassCounter(held_weakly(self._detector.pass_ended))
        self._stepping: Callable[[], Any] = _nothing  # the outermost, while counted
        self._optimizers: dict[int, OptimizerFacts] = {}  # by their ids
        self._detects_anomalies = False
        self._kind = self._usual_kind = Kind.MEASURED  # now; and but for a trace
        self._block_began = self._trace_began = 0  # after so many steps
        self._is_aside = False
        self._begin_profile()

    def _begin_profile(self) -> None:
        self._names = ModuleNames()
        self._tracker, self._no_memory = self._make(self._names)
        self._subscription = TrackerSubscription(self._tracker, optimizers=False)
        self._traced: TrackerSubscription | None = None  # while steps are traced
        self._counters = {kind: StepCounter() for kind in Kind}
        self._wall_ns = Counter[Kind]()
        self._began_ns = 0  # what comes after is not booked yet; 0: not running
        self._first: FirstReading | None = None
        self._traced_steps = self._traced_ns = 0
        self._longer: deque[float] = deque(maxlen=BLOCKS_KEPT)
        self._usual_ns = 0.0  # of the steps of the last block that was not measured
        self._steps_before = self._ns_before = 0  # the block, in its counter
        self._detector.follow(self._followed(), self._counters[self._kind])

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
        self._begin_profile()

    def start(self) -> None:
        """Begin; or go on after `stop`."""
        self._show()
        self._detector.start()
        self._began_ns = perf_counter_ns()
        self._follow_garbage()  # only now is its time measured

    def stop(self, by_exception: bool = False) -> None:
        """End, maybe in the middle of a step."""
        self._detector.stop()
        attachments.detach(garbage_callback, self._shown)
        attachments.detach(optimizer_hooks, self)
        self._shown.abort_all(by_exception)
        self._book_time()  # what comes is ours
        self._hide()
        self._began_ns = 0
        if self._kind is Kind.TRACED:  # the trace ends with it
            self._kind = self._usual_kind
            self._drop_traced()
            self._detector.follow(self._followed(), self._counters[self._kind])

    def step(self) -> None:
        """The program says that a step ends here."""
        now_ns, tracker = perf_counter_ns(), self._shown
        if self._kind is Kind.COUNTED:
            self._detector.step(False, now_ns)
            return
        with tracker.our_work():
            self._detector.step(tracker.site is not tracker.outside, now_ns)

    def hurry(self) -> None:
        """Have `at_step` called at the end of the step, and of each one after it."""
        self.ends_each_step = True

    def close_left_calls(self) -> None:
        """Close open calls, as the program is ending: as of the moment when they were
        last known to run."""
        if self._tracker.works_here():
            self._tracker.abort_all(by_exception=False)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What this thread does inside is profiler overhead, and no part of a step."""
        tracker = self._shown
        if self._is_aside or not tracker.works_here():
            yield  # it is so already, or is done in another thread
            return
        is_shown, self._is_aside = self._kind is not Kind.COUNTED, True
        began_ns = perf_counter_ns()
        if is_shown:
            site = tracker.entry_site(PROFILER_NAME, "profiler")
            tracker.open_entry(site)
        else:
            self._book_time()
        try:
            yield
        finally:
            if is_shown:
                tracker.leave_entry(site)
            else:
                self._began_ns = perf_counter_ns()
                self._book_as_ours(began_ns, self._began_ns)
            self._detector.leave_out(perf_counter_ns() - began_ns)
            self._is_aside = False

    # Reading

    def facts(self) -> ProgramFacts:
        """What is known of the program besides its times."""
        from torchprof_hooks.profiles.program import ProgramFacts

        return ProgramFacts(
            together(self._optimizers.values()),
            self._detects_anomalies or torch.is_anomaly_enabled(),
        )

    def profile(self, end_ns: int | None = None) -> ProfileData:
        """Everything measured so far; steps that were not are a part of their own.

        end_ns: when the time of the thread ended, if that is not now.
        """
        from torchprof_hooks.capture.slow_steps import slow_steps
        from torchprof_hooks.capture.snapshot import take_snapshot
        from torchprof_hooks.profiles.step_history import slowest_of

        kind, running = self._kind, self._detector.counted()
        counters = {**self._counters, kind: running}
        counted = counters[Kind.MEASURED].copy()
        is_open = kind is Kind.MEASURED
        found = take_snapshot(
            self._tracker,
            lambda: self._wall_so_far_ns(Kind.MEASURED, end_ns),
            self._no_memory,
            counted,
            first=self._first,
            end_ns=end_ns if is_open else None,
        )
        history = counted.history()
        if history.stretch_steps:
            slowest = slowest_of(slow_steps(self._tracker, counted.times()))
            history = replace(history, slowest=slowest)
        measured = MeasuredSteps(
            tuple(self._longer), self._traced_steps, self._traced_ns
        )
        found = replace(found, step_history=history, measured=measured)
        rest_ns = self._wall_so_far_ns(Kind.COUNTED, end_ns)
        return _with_rest(found, rest_ns, counters[Kind.COUNTED]) if rest_ns else found

    # What optimizers tell

    def optimizer_pre(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._kind is not Kind.COUNTED:
            self._shown.optimizer_pre(optimizer, args, kwargs)
        elif self._stepping() is None:
            self._stepping = weakref.ref(optimizer)

    def optimizer_post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._kind is Kind.COUNTED:
            self._counted_optimizer_stepped(optimizer)
            return
        tracker, ended_ns = self._shown, perf_counter_ns()
        tracker.optimizer_post(optimizer, args, kwargs)
        if tracker.works_here():
            with tracker.our_work():
                self._optimizer_stepped(tracker, optimizer, ended_ns)

    def _optimizer_stepped(
        self, tracker: Tracker, optimizer: Any, ended_ns: int
    ) -> None:
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = read_optimizer(optimizer)
        self._detects_anomalies |= torch.is_anomaly_enabled()
        is_inside = tracker.site is not tracker.outside
        if not (tracker.site.is_loading or (is_inside and tracker.is_in_optimizer())):
            self._detector.optimizer_stepped(optimizer, is_inside, ended_ns)

    def _counted_optimizer_stepped(self, optimizer: Any) -> None:
        if self._stepping() is optimizer and self._passes.works_here():
            self._stepping = _nothing  # else another one has called it
            in_pass = current_graph_task() != -1
            self._detector.optimizer_stepped(optimizer, in_pass, perf_counter_ns())

    def begin_closure(self) -> Callable[[], object]:
        if self._kind is Kind.COUNTED:
            return bool  # does nothing
        return self._shown.begin_closure()

    def _first_step_ended(self) -> None:
        """Read all sums: later ones do not show the first step by itself."""
        if self._kind is not Kind.MEASURED:
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

    # Blocks of steps

    def _step_ended(self) -> None:
        """Between two steps: go on with them, or with a block of another kind."""
        tracker, now_ns = self._tracker, perf_counter_ns()
        if self._kind is Kind.MEASURED:
            for meter in meters_of(tracker, DeviceMeter):
                is_start = self._first is None
                meter.stamped_steps.step_ended(tracker.calls, is_start)
        is_told = self.at_step is not None and (
            self.ends_each_step or now_ns >= self._tell_at_ns
        )
        if not is_told and not self._is_block_over():
            return
        self._book_time()
        attachments.detach(garbage_callback, self._shown)  # all time is ours
        kind = self._next_kind()
        if is_told:
            self._tell_at_ns = now_ns + TELL_EVERY_NS
            assert self.at_step is not None
            is_disturbed = self.at_step(self.steps)
            if not self._began_ns:
                return  # `at_step` has called `stop`
            kind = Kind.TRACED if is_disturbed else kind
        self._go_on(kind)

    def _is_block_over(self) -> bool:
        length = self._lengths[self._kind]
        return length is not None and self._detector.steps >= self._block_began + length

    def _next_kind(self) -> Kind:
        if self._kind is Kind.TRACED or not self._is_block_over():
            return self._usual_kind
        is_measured = self._kind is Kind.MEASURED
        return Kind.COUNTED if is_measured else Kind.MEASURED

    def _go_on(self, kind: Kind) -> None:
        """Go on with steps of this kind. The time since the last one is ours."""
        if kind is not self._kind or kind is Kind.TRACED:
            self._hide()
            self._end_block(kind)
            self._show()
        began_ns, now_ns = self._began_ns, perf_counter_ns()
        self._book_as_ours(began_ns, now_ns)
        self._began_ns = now_ns
        self._detector.leave_out(now_ns - began_ns)
        self._follow_garbage()

    def _end_block(self, next_kind: Kind) -> None:
        """Begin one of the next kind, or a trace in the middle of one."""
        kind, ended = self._kind, self._counters[self._kind]
        if next_kind is Kind.TRACED:
            self._new_traced()
        self._kind = next_kind
        self._detector.follow(self._followed(), self._counters[next_kind])
        if kind is Kind.TRACED:
            self._traced_steps += ended.steps + ended.evaluations
            self._traced_ns += self._wall_ns[kind]
            self._block_began += self._detector.steps - self._trace_began
            if next_kind is not kind:
                self._drop_traced()
            self._wall_ns[kind] = 0
        if next_kind is Kind.TRACED:
            self._trace_began = self._detector.steps
        elif next_kind is not self._usual_kind:
            self._compare(ended)
            self._usual_kind = next_kind
            self._begin_block()

    def _compare(self, ended: StepCounter) -> None:
        """A block has ended, whose steps are the last ones in this counter."""
        steps, before_ns = ended.steps - self._steps_before, self._ns_before
        mean_ns = (ended.steps_ns - before_ns) / steps if steps else 0.0
        if self._usual_kind is Kind.COUNTED:
            self._usual_ns = mean_ns
        elif self._usual_ns and mean_ns:
            self._longer.append(mean_ns / self._usual_ns - 1)

    def _begin_block(self) -> None:
        counter = self._counters[self._kind]
        self._block_began = self._detector.steps
        self._steps_before, self._ns_before = counter.steps, counter.steps_ns

    def _new_traced(self) -> None:
        """What sees the steps that are traced: of these, nothing is kept."""
        tracker = new_tracker(self._names)
        self._traced = TrackerSubscription(tracker, optimizers=False)
        self._counters[Kind.TRACED] = StepCounter()

    def _drop_traced(self) -> None:
        self._traced, self._wall_ns[Kind.TRACED] = None, 0

    # Time, and who is shown calls

    @property
    def _open(self) -> TrackerSubscription:
        return self._traced or self._subscription

    @property
    def _shown(self) -> Tracker:
        """What is shown the steps; while they are only counted, what measures."""
        return self._open.tracker

    def _followed(self) -> Tracker | None:
        return None if self._kind is Kind.COUNTED else self._shown

    def _wall_so_far_ns(self, kind: Kind, end_ns: int | None = None) -> int:
        """The time of the steps of this kind, with that which is not booked yet."""
        began_ns = self._began_ns  # once: another thread may read
        if not began_ns or kind is not self._kind:
            return self._wall_ns[kind]
        return self._wall_ns[kind] + max((end_ns or perf_counter_ns()) - began_ns, 0)

    def _book_time(self) -> None:
        if began_ns := self._began_ns:
            now_ns = perf_counter_ns()
            self._wall_ns[self._kind] += now_ns - began_ns
            self._began_ns = now_ns

    def _book_as_ours(self, began_ns: int, ended_ns: int) -> None:
        """Book time on the profiler, where it is known of no step."""
        self._tracker.interrupt(began_ns, ended_ns)
        self._wall_ns[Kind.MEASURED] += ended_ns - began_ns

    def _show(self) -> None:
        if self._kind is Kind.COUNTED:
            if self._detector.is_told:
                attachments.detach(optimizer_hooks, self)
                return
            attachments.attach(optimizer_hooks, self)
            if self._detector.needs_passes():
                attachments.attach(engine_patch, self._passes)
            return
        attachments.attach(optimizer_hooks, self)
        self._shown.on_pause = self._detector.call_ended
        self._open.open()

    def _follow_garbage(self) -> None:
        if self._kind is not Kind.COUNTED:
            attachments.attach(garbage_callback, self._shown)

    def _hide(self) -> None:
        attachments.detach(engine_patch, self._passes)
        self._open.close()
        self._shown.on_pause = None


def _with_rest(found: ProfileData, rest_ns: int, counted: StepCounter) -> ProfileData:
    """The profile with the steps that were not measured, as a part of their own."""
    from torchprof_hooks.profiles.modules import ModuleInfo
    from torchprof_hooks.profiles.parts import Part
    from torchprof_hooks.profiles.totals import Totals

    times = counted.times()
    cells: Cells = {((NOT_MEASURED_NAME,), "outside"): Totals(self_ns=rest_ns)}
    rest = Part("unmeasured", rest_ns, times.steps, times, cells)
    info = ModuleInfo(kind=kind_of_other(NOT_MEASURED_NAME), order=len(found.modules))
    return replace(
        found,
        parts=(*found.parts, rest),
        modules={**found.modules, NOT_MEASURED_NAME: info},
    )
