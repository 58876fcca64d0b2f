"""Follows a thread step by step, each as closely as a budget allows."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch

from torchprof_hooks.capture.attach.attachments import attachments, held_weakly
from torchprof_hooks.capture.attach.compiling import compile_shield
from torchprof_hooks.capture.attach.garbage import garbage_callback
from torchprof_hooks.capture.attach.optimizer_steps import optimizer_hooks
from torchprof_hooks.capture.core import hooks_of
from torchprof_hooks.capture.program_facts import (
    read_optimizer,
    together,
)
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.sampling.book import Book
from torchprof_hooks.capture.sampling.books import Books, MakeTracker
from torchprof_hooks.capture.sampling.every_step import tell_of_step
from torchprof_hooks.capture.sampling.levels import Ended, Level, Run, Running
from torchprof_hooks.capture.sampling.phase_times import PhaseTimes
from torchprof_hooks.capture.sampling.scheduler import Scheduler
from torchprof_hooks.capture.sampling.step_taps import StepTaps
from torchprof_hooks.capture.sampling.steps.step_detector import StepDetector
from torchprof_hooks.capture.sampling.steps.untold_ends import UntoldEnds
from torchprof_hooks.capture.torch_names.modules import is_module_call_on_stack
from torchprof_hooks.profiles.program import (
    OptimizerFacts,
    Program,
    ProgramFacts,
)

if TYPE_CHECKING:  # it takes long to import, and is needed when all is over
    from torchprof_hooks.capture.functions.flop_count import FlopCount
    from torchprof_hooks.capture.sampling.estimates.strata import Strata
    from torchprof_hooks.profiles.data import ProfileData


class SampledSteps:
    """Measures one thread, from `start` to `stop`, in steps and evaluation calls (see
    `StepDetector`), each on the level that the scheduler says.

    Where only the ends of steps are seen, nothing of ours is in the program but hooks
    on optimizers, and, if that is cheap enough, what times backward passes as a whole,
    and calls of modules from outside of all others, which tell evaluations from steps.
    In a program without optimizers, or where one steps inside of such a call, these
    hooks do not show where steps end: phases are timed at least.

    at_step: called now and then between steps, with the number of those that ended;
        returns whether the next one is disturbed, and is to be kept apart from others.
        It may call `stop`.
    """

    def __init__(self, make_tracker: MakeTracker, scheduler: Scheduler) -> None:
        self._thread = get_ident()
        self._scheduler = scheduler
        self._phase_times = PhaseTimes()
        self._books = Books(make_tracker, scheduler.levels, self._phase_times)
        self._detector = StepDetector(held_weakly(self._end_step))
        # Not in `start`: an interrupt there may leave optimizers telling already.
        self._detector.follow(self._books.open.tracker, self._books.open.counter)
        self._taps = StepTaps(
            held_weakly(self._pause), held_weakly(self._bound_functions)
        )
        self._optimizers: dict[int, OptimizerFacts] = {}  # by their ids
        self._detects_anomalies = False
        self._has_inner_steps = False  # of an optimizer, inside of a call
        self.steps = 0
        self.at_step: Callable[[int], bool] | None = None
        self._running = Running(scheduler.top)
        self._spent_before_ns = 0  # on earlier profiles
        self._is_between_runs = False
        # Where nothing is to be done at an optimizer's steps but to count them:
        self._only_optimizer = 0  # its id
        self._untold = UntoldEnds()

    def start(self) -> None:
        """Begin; or go on after `stop`."""
        called_ns = perf_counter_ns()
        attachments.attach(optimizer_hooks, self)
        self._taps.start()
        self._open(self._books.open)
        self._detector.start()
        self._books.start()
        attachments.attach(garbage_callback, self)  # only now is its time in a book
        self._running.aside_ns += perf_counter_ns() - called_ns

    def renew(self) -> None:
        """After `stop`: begin another profile, of the steps that come. What was learned
        of steps, and the budget for measuring, are kept; the run goes on."""
        self._spent_before_ns = self.spent_ns
        before = self._books.open.tracker
        self._phase_times = PhaseTimes()
        self._books = self._books.renewed(self._phase_times)
        book = self._books.open
        self._running.go_on(before, book.tracker)
        self._detector.renew()
        self._detector.follow(book.tracker, book.counter)

    def join(self, module: torch.nn.Module, args: Any) -> None:
        """A call of `module` is beginning that torch does not show to hooks which came
        during it: see it all the same."""
        hooks_of(self._books.open.tracker)[0](module, args)

    def leave(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        """The call that `join` has shown is over."""
        hooks_of(self._books.open.tracker)[1](module, args, outputs)

    def stop(self, by_exception: bool = False) -> None:
        """End, maybe in the middle of a step."""
        self._tell_of_untold()
        self._detector.stop()
        attachments.detach(garbage_callback, self)
        self._running.duration_ns += self._books.stop()
        ended_ns = perf_counter_ns()
        attachments.detach(optimizer_hooks, self)
        self._books.open.show_functions()
        self._taps.close(by_exception)
        self._taps.stop()
        self._phase_times.close()
        self._running.aside_ns += perf_counter_ns() - ended_ns

    def close_left_calls(self) -> None:
        """The program is ending: close calls that an interrupt has left, of which torch
        does not tell, as of the moment when they were last known to run."""
        tracker = self._books.open.tracker
        if tracker.works_here():
            tracker.drop_dead_calls()

    # Reading

    @property
    def spent_ns(self) -> int:
        """What measuring has cost, about; with the run that has not ended."""
        running = self._ended()
        running_ns = self._scheduler.prices.counted(running) + running.aside_ns
        return round(self._scheduler.savings.spent_ns + running_ns)

    def facts(self) -> ProgramFacts:
        """What is known of the program besides its times."""
        return ProgramFacts(
            together(self._optimizers.values()),
            self._detects_anomalies or torch.is_anomaly_enabled(),
        )

    def profile(self) -> ProfileData:
        """What was measured so far on the highest level, and how much was not."""
        found = self._books.profile(self._detector.counted(self._untold.read()))
        spent_ns = self.spent_ns - self._spent_before_ns
        return replace(found, overhead_ns=max(found.overhead_ns, spent_ns))

    def whole_program(
        self, flop_count: FlopCount | None = None, end_ns: int | None = None
    ) -> ProfileData:
        """All steps so far, those that were not measured estimated by the others.

        end_ns: when the program's time ended, if that is not now.
        """
        from torchprof_hooks.capture.sampling.estimates.program import (
            measured_steps,
            program_profile,
        )

        strata = self.strata(flop_count, end_ns)
        program = Program(measured=measured_steps(strata), facts=self.facts())
        overhead_ns = max(self.spent_ns, strata.overhead_ns)
        found = program_profile(strata)
        return replace(found, program=program, overhead_ns=overhead_ns)

    def strata(
        self, flop_count: FlopCount | None = None, end_ns: int | None = None
    ) -> Strata:
        """Everything measured so far, by levels (see `Books`).

        end_ns: when the program's time ended, if that is not now.
        """
        ends = self._untold.read()
        counted = self._detector.counted(ends, end_ns)
        return self._books.strata(counted, ends.steps, flop_count, end_ns)

    # What optimizers tell

    def optimizer_pre(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """`optimizer` is about to step. Only told where that is measured."""
        if self._phase_times.is_on:
            self._phase_times.optimizer_begins(optimizer)
        else:
            self._books.open.tracker.optimizer_pre(optimizer, args, kwargs)

    def optimizer_post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """`optimizer` has stepped: the step of the program may be over."""
        if self._phase_times.is_on:
            self._phase_times.optimizer_ends(optimizer)
        book, detector = self._books.open, self._detector
        tracker = book.tracker
        is_measured = book.level > Level.STEPS
        if is_measured:
            tracker.optimizer_post(optimizer, args, kwargs)
        is_alone = id(optimizer) == self._only_optimizer
        has_more = is_alone and self._running.steps_left > 1
        may_wait = has_more and get_ident() == self._thread
        is_outside = tracker.site is tracker.outside
        if may_wait and is_outside and self._untold.optimizer_stepped():
            self._running.steps_left -= 1
            return
        if not is_measured and detector.rounds.is_inner(optimizer):
            return
        if not tracker.works_here():
            return
        began_ns, around = perf_counter_ns(), tracker.site
        aside_ns = self._books.aside_ns
        if not detector.rounds.knows(optimizer):
            self._optimizers[id(optimizer)] = read_optimizer(optimizer)
        self._detects_anomalies |= torch.is_anomaly_enabled()
        self._tell_of_untold()
        if not is_alone:
            self._only_optimizer = 0
        self._has_inner_steps |= tracker.site is not tracker.outside
        ended_ns = tracker.last_booked_ns() if is_measured else 0
        now_ns = ended_ns or perf_counter_ns()
        tell_of_step(detector, tracker, optimizer, now_ns)
        self._count_untold()
        aside_ns -= self._books.aside_ns  # what is in no book
        ended_ns = perf_counter_ns()
        around.reading_ns += ended_ns - began_ns + aside_ns
        tracker.garbage.was_no_cost(around, began_ns, ended_ns)

    def begin_closure(self) -> Callable[[], object]:
        if self._phase_times.is_on:
            return self._phase_times.begin_closure()
        return self._books.open.tracker.begin_closure()

    # What else tells of ends

    def _pause(self, site: Site, end_ns: int) -> None:
        self._running.pauses += 1
        if site.phase == "data":
            return  # it ends nothing
        aside_ns = self._books.aside_ns
        self._running.calls += site.phase == "forward"
        is_counting = self._untold.is_counting
        if is_counting:
            self._tell_of_untold()
        self._detector.call_ended(site, end_ns)
        if is_counting:
            self._count_untold()
        # Whoever tells of the pause times this, too; but time left out is in no book.
        site.caller.reading_ns -= self._books.aside_ns - aside_ns

    def _bound_functions(self, calls: object) -> None:
        """Look at no more functions in a run that does not end, once they cost far more
        than they may. All else is still seen."""
        if get_ident() != self._thread or self._taps.hides_functions:
            return
        if any(site.is_function for site in self._books.open.tracker.open_sites()):
            return
        running = self._ended()._replace(duration_ns=self._books.age_ns())
        if self._scheduler.is_out_of_hand(running):
            self._taps.hide_functions()
            self._books.open.hide_functions()

    def garbage_collected(self, took_ns: int) -> None:
        """Python has looked for garbage."""
        if not self._is_between_runs:  # that time is in no book
            self._books.open.tracker.garbage_collected(took_ns)

    def _tell_of_untold(self) -> None:
        ends = self._untold.take()
        self._detector.tell(ends)
        self.steps += ends.steps
        self._books.open.steps += ends.steps
        self._running.count(ends)

    def _count_untold(self) -> None:
        """Have ends of calls counted, not told one by one, if none needs an answer."""
        book = self._books.open
        if book.level <= Level.PHASES and self._shows_ends_by_optimizers():
            left = self._running.steps_left - 1  # the last one ends the run
            self._untold.count(book.tracker, left, self._detector.is_idle)

    def _shows_ends_by_optimizers(self) -> bool:
        """Whether optimizers alone tell where steps end, and nothing else is wanted of
        single steps: not how long each waits for other processes."""
        waits = any(book.tracker.exchanges.waited_ns for book in self._books)
        return self._least() == Level.STEPS and not waits

    # Runs of steps

    def _end_step(self, is_training: bool) -> None:
        books, running = self._books, self._running
        self.steps += 1
        books.open.steps += 1
        running.evaluations += not is_training
        running.steps_left -= 1
        is_allowed = books.open.level >= self._least()
        if (running.steps_left > 0 and is_allowed) or not self._may_switch(is_training):
            return
        running.duration_ns += books.book_time()
        self._is_between_runs = True
        chosen = self._next_book()
        if self.at_step is not None:
            running.aside_ns += books.leave_out()
            is_disturbed = self.at_step(self.steps)
            if not books.is_running:
                return
            if is_disturbed:
                running.choose(Run(Level.PHASES))
                chosen = books.disturbed
            self._detector.leave_out(books.leave_out())  # not paid from the budget
        if chosen is not books.open or self._taps.hides_functions:
            books.open.show_functions()
            self._taps.close()
            self._phase_times.close()
            self._open(chosen)
        running.begin(chosen.tracker)
        running.aside_ns += books.leave_out()
        self._is_between_runs = False
        self._detector.leave_out(running.aside_ns)

    def _may_switch(self, is_training: bool) -> bool:
        """Whether hooks may come or go now: not if torch.compile would compile again
        for that, nor in the middle of a call, which would then be seen in part."""
        if compile_shield.has_missed:
            return False
        # With hooks on modules, this is only asked when no call is open.
        has_hooks = self._books.open.level > Level.STEPS
        return has_hooks or not is_training or not is_module_call_on_stack()

    def _ended(self) -> Ended:
        """The run so far."""
        untold_calls = self._untold.read().calls
        return self._running.ended(self._books.open.tracker, untold_calls)

    def _next_book(self) -> Book:
        """Have the run that has ended booked, and choose how to go on."""
        books, running, ended = self._books, self._running, self._ended()
        running.aside_ns = 0
        if books.is_at_start and self._start_goes_on(ended):
            running.choose(Run(self._scheduler.top))
            return books.warm_up
        if books.open is books.warm_up:
            running.choose(self._scheduler.begin(ended))
        elif books.open is books.disturbed:
            running.choose(Run(self._scheduler.top))
        else:
            running.choose(self._scheduler.next(ended, self._least()))
        return books.by_level[running.level]

    def _start_goes_on(self, ended: Ended) -> bool:
        if not self._detector.expects_first_step():
            return False
        is_disturbed = self._books.open is self._books.disturbed
        return is_disturbed or self._scheduler.lets_wait(ended)

    def _least(self) -> Level:
        """The lowest level that is possible now."""
        has_optimizer = bool(self._detector.rounds.living)
        if has_optimizer and not self._has_inner_steps:
            return Level.STEPS
        return Level.PHASES

    # Hooks

    def _open(self, book: Book) -> None:
        self._books.open = book
        is_measured = book.level > Level.STEPS
        self._detector.follow(book.tracker, book.counter, is_measured)
        self._only_optimizer = 0
        prices = self._scheduler.prices
        times_phases = not is_measured and prices.times_phases
        if any(book.tracker.has_unseen_passes for book in self._books):
            book.tracker.hears_unseen_passes = True  # which costs something
            times_phases = False  # unseen passes would be missing
        optimizer_hooks.tell_of_beginnings(self, is_measured or times_phases)
        if times_phases:
            self._phase_times.open()
        if is_measured:
            self._taps.open(book.tracker, sees_inside=book.level > Level.PHASES)
        else:
            book.is_watched = prices.watches
            if prices.watches:
                self._taps.watch(book.tracker)
        self._only_optimizer = self._detector.rounds.only_optimizer
        self._count_untold()
