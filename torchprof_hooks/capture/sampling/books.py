"""What is known of the steps of a thread, by how closely they were looked at."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from torchprof_hooks.capture.record.module_names import ModuleNames
from torchprof_hooks.capture.record.step_counter import StepCounter
from torchprof_hooks.capture.sampling.book import NO_PACE, Book, Pace, Unbooked
from torchprof_hooks.capture.sampling.levels import Level
from torchprof_hooks.capture.sampling.phase_times import PhaseTimes
from torchprof_hooks.capture.torch_names.autograd import next_sequence_number
from torchprof_hooks.capture.tracking.make_tracker import new_tracker
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.profiles.step_times import StepTimes

if TYPE_CHECKING:  # it takes long to import, and is needed when all is over
    from torchprof_hooks.capture.functions.flop_count import FlopCount
    from torchprof_hooks.capture.sampling.estimates.strata import Strata
    from torchprof_hooks.capture.sampling.estimates.stratum import Stratum
    from torchprof_hooks.profiles.data import ProfileData

#: Also returns why the tracker does not measure memory, if it should.
MakeTracker = Callable[[Level, ModuleNames], tuple[Tracker, str]]

#: How much of earlier steps counts beside those that were seen last: these may be few.
_KEPT: Final = 0.5
#: Phases that were timed in some steps stand for up to so many times as many steps.
#: Else, steps that were looked into tell more: they are from all of the program.
_MOST_TIMES_TIMED: Final = 2


def _coarse_tracker(names: ModuleNames) -> Tracker:
    """One that sees phases, each as a whole."""
    tracker = new_tracker(names, divides=False)
    tracker.sees_outer_alone = True
    return tracker


class Books:
    """A book for each level, one for the first step (in which much is done for the
    first time) and evaluations before it, and one for steps that we disturb. Time is
    booked in the open one.

    levels: those that steps are looked at on; where these are too dear, the end of a
        step may be all that is seen, or phases.
    phase_times: of steps of which nothing else is seen but the end.
    aside_ns: time that we took, which is in no step of the program.
    """

    def __init__(
        self,
        make_tracker: MakeTracker,
        levels: Sequence[Level],
        phase_times: PhaseTimes,
    ) -> None:
        self._make_tracker, self._levels = make_tracker, levels
        names = ModuleNames()
        coarse = (Level.STEPS, Level.PHASES)
        self.by_level = {level: Book(level, _coarse_tracker(names)) for level in coarse}
        for level in levels:
            if level not in coarse:
                self.by_level[level] = Book(level, *make_tracker(level, names))
        self.top = self.by_level[levels[-1]]
        self.warm_up = Book(levels[-1], *make_tracker(levels[-1], names))
        self.disturbed = Book(Level.PHASES, _coarse_tracker(names))
        self.open = self.warm_up
        self.aside_ns = 0
        self._phase_times = phase_times
        # Of steps of which only the ends are seen: those with timed phases, and all;
        # only time of runs that have ended: what comes after the last step is in none.
        self._timed = self._counted = NO_PACE
        self._began_ns = 0  # what comes after is not booked yet; 0: not running
        self._thread, self._first_node = get_ident(), 0  # its first node to book
        self._pace = NO_PACE  # where only the ends of steps are seen, lately
        self._is_fresh = False  # the pace is that just before
        self._garbage_ns = 0

    def __iter__(self) -> Iterator[Book]:
        return iter((self.warm_up, *self.by_level.values(), self.disturbed))

    @property
    def is_at_start(self) -> bool:
        """Whether no step has ended that could be compared with others."""
        return not any(book.steps for book in self.by_level.values())

    def renewed(self, phase_times: PhaseTimes) -> Books:
        """New books for the same levels, with nothing in them."""
        made = Books(self._make_tracker, self._levels, phase_times)
        pairs = zip(self, made, strict=True)
        made.open = next(new for old, new in pairs if old is self.open)
        return made

    def start(self) -> None:
        """From now on, time is the program's."""
        self._first_node = next_sequence_number()
        self._began_ns = perf_counter_ns()

    @property
    def is_running(self) -> bool:
        """Whether time is the program's now: after `start`, and before `stop`."""
        return self._began_ns > 0

    def book_time(self, *, is_end: bool = True) -> int:
        """Book the nanoseconds that have passed, return them, and go on.

        is_end: whether a step has just ended.
        """
        now_ns = perf_counter_ns()
        passed_ns = now_ns - self._began_ns if self._began_ns else 0
        self.open.wall_ns += passed_ns
        self.open.unwatched_ns += passed_ns * (not self.open.is_watched)
        self._began_ns = now_ns
        self._book_nodes(passed_ns, is_end)
        return passed_ns

    def _book_nodes(self, passed_ns: int, is_end: bool) -> None:
        book, nodes = self.open, self._new_nodes()
        book.nodes += nodes
        if book.level > Level.STEPS:
            if self._is_fresh and book.level > Level.PHASES:
                book.unseen = book.unseen.then(*self._pace.of(nodes))
            self._is_fresh = False
            return
        # Evaluations alone make no nodes, and have no phases to time.
        passed = nodes, passed_ns * (is_end and nodes > 0)
        self._counted = self._counted.then(*passed)
        if self._phase_times.is_on:
            self._timed = self._timed.then(*passed)
        before_ns, now_ns = self._garbage_ns, book.tracker.garbage.collections.total_ns
        self._garbage_ns = now_ns
        kept = Pace(*(_KEPT * each for each in self._pace))
        self._pace = kept.then(nodes, passed_ns - (now_ns - before_ns))
        self._is_fresh = self._pace.nodes > 0

    def _new_nodes(self) -> int:
        """How many nodes were made since something was booked last; 0 in another
        thread, which has a counter of its own."""
        if get_ident() != self._thread:
            return 0
        before, self._first_node = self._first_node, next_sequence_number()
        return self._first_node - before

    def _running_nodes(self, running_ns: int) -> int:
        """How many nodes were made that are not booked yet. If another thread reads,
        which has a counter of its own, that is an estimate."""
        if not self._began_ns:
            return 0
        if get_ident() == self._thread:
            return next_sequence_number() - self._first_node
        return self.open.nodes * running_ns // max(self.open.wall_ns, 1)

    def leave_out(self) -> int:
        """Leave out the nanoseconds that have passed, which were ours; return them."""
        now_ns = perf_counter_ns()
        passed_ns = now_ns - self._began_ns
        self.aside_ns += passed_ns
        self._began_ns = now_ns
        self._new_nodes()
        return passed_ns

    def stop(self) -> int:
        """Book the nanoseconds that have passed, and return them. What follows is not
        the program's time."""
        passed_ns = self.book_time(is_end=False) if self._began_ns else 0
        self._began_ns = 0
        return passed_ns

    def age_ns(self, end_ns: int | None = None) -> int:
        """The nanoseconds from when something was booked last until `end_ns`, or until
        now."""
        began_ns = self._began_ns  # once: another thread may read
        if end_ns is None:
            end_ns = perf_counter_ns()
        return max(end_ns - began_ns, 0) if began_ns else 0

    def profile(self, counted: StepCounter) -> ProfileData:
        """What was measured on the highest level, and how much was not. The first step
        counts as not measured as soon as another one is.

        counted: the steps of the open book.
        """
        shown = self.top if self.top.steps else self.warm_up
        unbooked = {book: Unbooked(book.counter) for book in self}
        unbooked[self.open] = Unbooked(counted, took_ns=self.age_ns())
        times = {book: each.counter.times() for book, each in unbooked.items()}
        others = [book for book in self if book is not shown]
        others_ns = sum(book.wall_ns + unbooked[book].took_ns for book in others)
        of_all = reduce(StepTimes.merge, times.values())
        found = shown.profile(unbooked[shown])
        return replace(
            found.with_parts(lambda part: replace(part, step_times=of_all)),
            unmeasured_ns=self.aside_ns + others_ns,
            unmeasured_steps=sum(times[book].steps for book in others),
        )

    def strata(
        self,
        counted: StepCounter,
        ended: int,
        flop_count: FlopCount | None,
        end_ns: int | None,
    ) -> Strata:
        """Everything measured so far, by levels.

        counted: the steps of the open book. ended: those that are not in it yet.
        flop_count: counts floating-point operations, with the patience that it has.
        end_ns: when the program's time ended, if that is not now.
        """
        running_ns = self.age_ns(end_ns)  # first: what follows takes time
        from torchprof_hooks.capture.sampling.estimates.strata import Strata
        from torchprof_hooks.capture.sampling.estimates.stratum import Stratum

        running = Unbooked(counted, ended, running_ns, end_ns)

        def stratum(book: Book | None) -> Stratum:
            if book is None:
                return Stratum()
            unbooked = running if book is self.open else Unbooked(book.counter)
            return self._stratum(book, unbooked, flop_count)

        return Strata(
            warm_up=stratum(self.warm_up),
            phases=stratum(self.by_level[Level.PHASES]),
            modules=stratum(self.by_level.get(Level.MODULES)),
            functions=stratum(self.by_level.get(Level.FUNCTIONS)),
            disturbed=stratum(self.disturbed),
            counted=stratum(self.by_level[Level.STEPS]),
        )

    def _stratum(
        self, book: Book, unbooked: Unbooked, flop_count: FlopCount | None
    ) -> Stratum:
        """What is in a book, and what is not booked yet."""
        from torchprof_hooks.capture.sampling.estimates.stratum import Stratum

        # A program waits for this when it ends: costs are tried out with one kind of
        # tracker alone, the one that sees all that any of them sees.
        profile = book.profile(unbooked, flop_count, costs_like=self.warm_up.tracker)
        times = profile.step_times
        is_open = book is self.open
        running_nodes = self._running_nodes(unbooked.took_ns) if is_open else 0
        nodes = book.nodes + running_nodes
        backward_ns, optimizers_ns = self._phases_ns(book, nodes, running_nodes)
        return Stratum(
            profile,
            book.steps + unbooked.steps,
            times.steps_ns + times.evaluation_ns,
            nodes,
            round(book.unseen.of(nodes).took_ns),
            backward_ns,
            optimizers_ns,
            book.unwatched_ns,
        )

    def _phases_ns(self, book: Book, nodes: int, running: int) -> tuple[int, int]:
        """What backward passes, and steps of optimizers, took in all steps of which
        only the ends are seen. If they were timed in some steps alone, that is scaled
        up by the ratio of nodes, but not beyond that of times: steps that are timed are
        long ones, in which each node may take long. 0 stands for not known, if they
        were not timed in most.

        nodes: how many were made in all of them; what comes after the last step may
            take long, and makes none. running: how many of these are not booked yet.
        """
        times = self._phase_times
        timed_nodes, timed_ns = self._timed.then(running * times.is_on, 0)
        if book.level > Level.STEPS or not timed_nodes:
            return 0, 0
        share = nodes / timed_nodes
        if self._counted.took_ns:
            share = min(share, self._counted.took_ns / max(timed_ns, 1))
        if share > _MOST_TIMES_TIMED:
            return 0, 0
        return round(share * times.passes_ns), round(share * times.optimizers_ns)
