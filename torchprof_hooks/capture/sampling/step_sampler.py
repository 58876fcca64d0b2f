"""Follows a thread step by step, each as closely as its turn and the budget say."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import chain
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import torch

from torchprof_hooks.capture.attach.attachments import attachments
from torchprof_hooks.capture.attach.compile_shield import compile_shield
from torchprof_hooks.capture.attach.optimizer_steps import optimizer_hooks
from torchprof_hooks.capture.backward_tracker import BackwardTracker
from torchprof_hooks.capture.module_names import ModuleNames
from torchprof_hooks.capture.optimizers import read_optimizer
from torchprof_hooks.capture.phase_tracker import PhaseTracker
from torchprof_hooks.capture.precision import leaves_tf32_unused
from torchprof_hooks.capture.sampling.every_step import tell_of_step
from torchprof_hooks.capture.sampling.pace import (
    NANOSECONDS_PER_SPAN,
    Detail,
    Pace,
    Turn,
)
from torchprof_hooks.capture.sampling.root_taps import outermost_modules
from torchprof_hooks.capture.sampling.step_counter import StepCounter
from torchprof_hooks.capture.sampling.step_detector import StepDetector
from torchprof_hooks.capture.sampling.step_taps import StepTaps
from torchprof_hooks.capture.tap import Tap
from torchprof_hooks.profiles.program_facts import OptimizerFacts, ProgramFacts

if TYPE_CHECKING:  # it takes long to import, and is needed when all is over
    from torchprof_hooks.capture.flop_count import FlopCount
    from torchprof_hooks.profiles.strata import Strata, Stratum

#: Modules called from outside of all others that get hooks of their own. In a program
#: with more of them, every step is looked at in modules.
MOST_ROOTS: Final = 32

#: Also tells why the tracker does not measure memory, if it should.
MakeTracker = Callable[[Detail, ModuleNames], tuple[BackwardTracker, str]]


class _Book:
    """What is known of all steps of one kind."""

    def __init__(
        self, detail: Detail, tracker: BackwardTracker, unmeasured: str = ""
    ) -> None:
        self.detail = detail
        self.tracker = tracker
        self.steps = 0
        self.counter = StepCounter()
        self.wall_ns = 0
        self._steps_ns = 0
        self._unmeasured = unmeasured
        self._spans = 0

    def end_steps(self, duration_ns: int, count: int) -> int:
        """Count steps that took so long. Returns the number of spans in them."""
        self.steps += count
        self.wall_ns += duration_ns
        self._steps_ns += duration_ns
        before, self._spans = self._spans, self.tracker.log.spans
        return self._spans - before

    @property
    def open_spans(self) -> int:
        """Spans that were not asked for yet."""
        return self.tracker.log.spans - self._spans

    def stratum(
        self,
        flop_count: FlopCount | None,
        running_ns: int = 0,
        steps: int = 0,
        counted: StepCounter | None = None,
        costs_like: BackwardTracker | None = None,
    ) -> Stratum:
        """All so far. What is not counted yet has taken `running_ns`; so many steps of
        it have ended.

        counted: in place of `counter`.
        costs_like: see `take_snapshot`.
        """
        from torchprof_hooks.capture.snapshot import take_snapshot
        from torchprof_hooks.profiles.strata import Stratum

        profile = take_snapshot(
            self.tracker,
            self.wall_ns + running_ns,
            self._unmeasured,
            flop_count,
            counted or self.counter,
            costs_like=costs_like,
        )
        steps_ns = self._steps_ns + (running_ns if steps else 0)
        return Stratum(profile, self.steps + steps, steps_ns)


class StepSampler:
    """Measures one thread, from `start` to `stop`, in steps (see `StepDetector`).

    The first step is the warm-up, and has a book of its own.

    at_step: called now and then between steps, with the number of those that ended;
        whether the one that begins is disturbed, and should be kept apart from others.
    """

    def __init__(self, make_tracker: MakeTracker, pace: Pace, most: Detail) -> None:
        names = ModuleNames()
        self._pace = pace
        self._most = most
        self._books = {Detail.PHASES: _Book(Detail.PHASES, PhaseTracker(names))}
        for detail in (Detail.MODULES, Detail.FUNCTIONS):
            if detail <= most:
                self._books[detail] = _Book(detail, *make_tracker(detail, names))
        self._disturbed = _Book(Detail.PHASES, PhaseTracker(names))
        self._warm_up = self._book = _Book(most, *make_tracker(most, names))
        self._optimizers: dict[OptimizerFacts, None] = {}  # each once, in order
        self._detects_anomalies = False
        self._turn = Turn(most)
        self._steps_left = 1
        self._detector = StepDetector(self._end_step)
        self._taps = StepTaps(self._detector.call_ended)
        # Weak: the program's modules die when they would without us.
        self._roots: list[weakref.ref[torch.nn.Module]] = []
        self._began_ns = 0
        self.steps = 0
        self.at_step: Callable[[int], bool] = lambda steps: False

    @property
    def spent_ns(self) -> int:
        """What measuring has cost, about; with the step that is running."""
        book = self._book
        spans = book.open_spans if book.detail > Detail.PHASES else 0
        return round(self._pace.savings.spent_ns) + NANOSECONDS_PER_SPAN * spans

    def start(self) -> None:
        """Begin, with the warm-up; or go on after `stop`."""
        attachments.attach(optimizer_hooks, self)
        self._open(self._book)
        self._detector.start()

    def join(self, module: torch.nn.Module, args: Any) -> None:
        """A call of `module` is beginning that torch does not show to hooks which came
        during it: see it all the same."""
        self._book.tracker.forward_pre(module, args)

    def stop(self, by_exception: bool = False) -> None:
        """End, most likely in the middle of a step."""
        if not self._taps.is_open:
            return
        self._detector.stop()
        attachments.detach(optimizer_hooks, self)
        self._taps.close(by_exception)
        self._book.wall_ns += perf_counter_ns() - self._began_ns
        self._book.steps += self._steps_done
        self._turn, self._steps_left = Turn(self._book.detail), 1

    def facts(self) -> ProgramFacts:
        """What is known of the program besides its times."""
        return ProgramFacts(
            tuple(self._optimizers),
            self._detects_anomalies or torch.is_anomaly_enabled(),
            leaves_tf32_unused(),
        )

    def strata(self, flop_count: FlopCount | None = None) -> Strata:
        """Everything measured so far.

        flop_count: counts floating-point operations, with the patience that it has.
        """
        from torchprof_hooks.profiles.strata import Strata

        now_ns = perf_counter_ns()  # what follows takes its time

        def stratum(book: _Book | None) -> Stratum:
            return self._stratum(book, now_ns, flop_count)

        return Strata(
            warm_up=stratum(self._warm_up),
            phases=stratum(self._books[Detail.PHASES]),
            modules=stratum(self._books[Detail.MODULES]),
            functions=stratum(self._books.get(Detail.FUNCTIONS)),
            disturbed=stratum(self._disturbed),
        )

    def _stratum(
        self, book: _Book | None, now_ns: int, flop_count: FlopCount | None
    ) -> Stratum:
        from torchprof_hooks.profiles.strata import Stratum

        if book is None:
            return Stratum()
        # A program waits for this when it ends: costs are tried out with one kind of
        # tracker alone, the one that sees all that any of them sees.
        closest = self._warm_up.tracker
        is_last = book is self._book
        counted = self._detector.counted() if is_last else None
        if not (is_last and self._taps.is_open):
            return book.stratum(flop_count, counted=counted, costs_like=closest)
        running_ns = now_ns - self._began_ns
        return book.stratum(
            flop_count, running_ns, self._steps_done, counted, costs_like=closest
        )

    @property
    def _steps_done(self) -> int:
        """Of the steps that are looked at in the same way, those that have ended."""
        return self._turn.steps - self._steps_left

    # Steps

    def optimizer_pre(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """`optimizer` is about to step."""
        self._book.tracker.optimizer_pre(optimizer, args, kwargs)

    def optimizer_post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """It has: the step of the program may be over."""
        tracker = self._book.tracker
        tracker.optimizer_post(optimizer, args, kwargs)
        if not tracker.works_here():
            return
        if not self._detector.knows(optimizer):
            self._optimizers[read_optimizer(optimizer)] = None
        self._detects_anomalies |= torch.is_anomaly_enabled()
        tell_of_step(self._detector, tracker, optimizer, tracker.last_end_ns())

    def begin_closure(self) -> Callable[[], object]:
        """The optimizer calls the program (see `OwningTracker`)."""
        return self._book.tracker.begin_closure()

    def _end_step(self, is_training: bool) -> None:
        self.steps += 1
        self._steps_left -= 1
        if self._steps_left > 0 and self._detector.has_optimizer:
            return
        ended_ns = now_ns = perf_counter_ns()
        book = self._book
        chosen = self._next_book(book, now_ns - self._began_ns)
        asked_ns = perf_counter_ns()
        if self.at_step(self.steps):
            self._turn, self._steps_left = Turn(Detail.PHASES), 1
            chosen = self._disturbed
        now_ns += perf_counter_ns() - asked_ns  # not for us
        if chosen is not book:
            self._taps.close()
            self._open(chosen)
        self._began_ns = perf_counter_ns()
        self._pace.savings.spend(self._began_ns - now_ns)
        self._detector.leave_out(self._began_ns - ended_ns)

    def _next_book(self, ended: _Book, duration_ns: int) -> _Book:
        turn = Turn(self._turn.detail, self._steps_done)
        spans = ended.end_steps(duration_ns, turn.steps)
        if ended.detail > Detail.PHASES:
            self._roots = self._find_roots()
        if ended is self._warm_up:
            self._pace.book_warm_up(duration_ns, spans)
            return self._take(self._pace.begin())
        if compile_shield.has_missed:
            self._steps_left = 1
            return ended  # torch.compile would compile again if hooks came or went
        if ended is self._disturbed:
            return self._take(Turn(self._most))
        # Too many hooks of their own would cost as much as those on all modules; and
        # without an optimizer, the end of a step is only seen by hooks on modules: also
        # on those that were never called before.
        is_bound = len(self._roots) > MOST_ROOTS or not self._detector.has_optimizer
        least = Detail.MODULES if is_bound else Detail.PHASES
        return self._take(self._pace.next(turn, duration_ns, spans, least))

    def _take(self, turn: Turn) -> _Book:
        self._turn = turn
        self._steps_left = turn.steps
        return self._books[turn.detail]

    # Hooks

    def _open(self, book: _Book) -> None:
        self._book = book
        self._detector.follow(book.tracker, book.counter)
        is_close = book.detail > Detail.PHASES
        self._taps.open(
            book.tracker,
            lambda: Tap(book.tracker, modules=is_close, optimizers=False),
            None if is_close else self._roots,
        )
        self._began_ns = perf_counter_ns()

    def _find_roots(self) -> list[weakref.ref[torch.nn.Module]]:
        """The living modules that have been called from outside of any other."""
        books = (self._warm_up, *self._books.values())
        found = (outermost_modules(book.tracker.outside) for book in books)
        roots = {id(module): weakref.ref(module) for module in chain(*found)}
        return list(roots.values())
