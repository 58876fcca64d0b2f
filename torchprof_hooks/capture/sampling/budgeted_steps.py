"""Measures some of the steps of a thread, so that it costs no more than it may."""

from __future__ import annotations

import weakref
from _thread import get_ident
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from time import perf_counter_ns
from typing import Any, Final

import torch

from torchprof_hooks.capture.attach.attachments import attachments
from torchprof_hooks.capture.attach.compile_shield import compile_shield
from torchprof_hooks.capture.attach.optimizer_steps import optimizer_hooks
from torchprof_hooks.capture.backward_tracker import BackwardTracker
from torchprof_hooks.capture.module_names import ModuleNames
from torchprof_hooks.capture.phase_tracker import PhaseTracker
from torchprof_hooks.capture.sampling.every_step import tell_of_step
from torchprof_hooks.capture.sampling.root_taps import outermost_modules
from torchprof_hooks.capture.sampling.step_budget import Run, StepBudget
from torchprof_hooks.capture.sampling.step_counter import StepCounter
from torchprof_hooks.capture.sampling.step_detector import LEAST_LONG, StepDetector
from torchprof_hooks.capture.sampling.step_taps import StepTaps
from torchprof_hooks.capture.snapshot import take_snapshot
from torchprof_hooks.capture.tap import Tap
from torchprof_hooks.capture.torch_names.autograd import next_sequence_number
from torchprof_hooks.capture.torch_names.modules import modules_on_stack
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.step_times import StepTimes

#: Calls from outside of all modules in a training step from which on those of steps
#: that are not measured have no hook, and evaluations in between are not told apart.
MOST_WATCHED_CALLS: Final = 16


class _Part:
    """Steps of one kind, and what is known of them.

    has_steps: whether a step or an evaluation call has ended.
    counter: of these.
    """

    def __init__(self, tracker: BackwardTracker, is_measured: bool) -> None:
        self.tracker = tracker
        self.is_measured = is_measured
        self.time_ns = 0
        self.has_steps = False
        self.counter = StepCounter()


class BudgetedSteps:
    """Measures one thread, from `start` to `stop`, in some of its steps and evaluation
    calls (see `StepDetector` and `StepBudget`). In the others, nothing of ours is left
    in the program but what tells the end of a step: hooks on optimizers, and a short
    one on the modules that are called from outside of all others, for evaluations, if
    there are few such calls in a step. In a program without optimizers, or where one
    steps inside of such a call, phases are followed instead.

    Of the first step, in which much is done for the first time, a tracker of its own
    keeps the record. It counts as not measured as soon as another step is.

    make_tracker: makes one for this thread, and tells why it does not measure memory,
        if it should.
    """

    def __init__(
        self,
        make_tracker: Callable[[ModuleNames], tuple[BackwardTracker, str]],
        budget: StepBudget,
    ) -> None:
        self._thread = get_ident()
        self._budget = budget
        self._detector = StepDetector(self._end_step)
        names = ModuleNames()
        first, self._no_memory = make_tracker(names)
        later, _ = make_tracker(names)
        self._warm_up = self._part = _Part(first, is_measured=True)
        self._measured = _Part(later, is_measured=True)
        self._unmeasured = _Part(PhaseTracker(names), is_measured=False)
        self._run, self._steps_left = Run(is_measured=True), 1
        self._run_ns = 0  # of the run, before the last `start`
        self._began_ns = 0  # 0: not running
        self._spans = 0  # closed before the run began
        self._aside_ns = 0  # of ours, between runs and blocks
        # Its id, where nothing is to be done at its steps but to count them.
        self._only_optimizer = 0
        self._has_inner_steps = False  # of an optimizer, inside of a call
        self._stamps: list[int] = []  # when it stepped
        self._graphs = 0  # made since then, of which the detector was not told
        self._kinds: set[bool] = set()  # of what has ended in the run: see StepDetector
        self._taps = StepTaps(self._detector.call_ended)
        # Weak: the program's modules die when they would without us.
        self._roots: list[weakref.ref[torch.nn.Module]] = []

    def start(self) -> None:
        """Begin; or go on after `stop`."""
        called_ns = perf_counter_ns()
        attachments.attach(optimizer_hooks, self)
        self._open()
        self._detector.start()
        self._began_ns = perf_counter_ns()
        self._aside_ns += self._began_ns - called_ns

    def stop(self, by_exception: bool = False) -> None:
        """End, maybe in the middle of a step."""
        self._tell_of_stamps()
        self._detector.stop()
        if self._began_ns:
            self._book_time()
        ended_ns, self._began_ns = self._began_ns or perf_counter_ns(), 0
        attachments.detach(optimizer_hooks, self)
        self._taps.close(by_exception)
        self._aside_ns += perf_counter_ns() - ended_ns

    def snapshot(self) -> Profile:
        """What was measured so far, and how much was not."""
        parts = {self._warm_up, self._measured, self._unmeasured}
        times_ns = {part: part.time_ns for part in parts}
        began_ns = self._began_ns  # once: another thread may read
        if began_ns:
            times_ns[self._part] += perf_counter_ns() - began_ns
        shown = self._measured if self._measured.has_steps else self._warm_up
        others = parts - {shown}
        counts = {part: part.counter for part in parts}
        counts[self._part] = self._detector.counted(self._stamps)
        profile = take_snapshot(
            shown.tracker, times_ns[shown], self._no_memory, counted=counts[shown]
        )
        times = {part: counts[part].times() for part in parts}
        return replace(
            profile,
            overhead_ns=max(profile.overhead_ns, round(self._budget.savings.spent_ns)),
            unmeasured_ns=sum(times_ns[part] for part in others),
            unmeasured_steps=sum(times[part].steps for part in others),
            step_times=reduce(StepTimes.merge, times.values()),
        )

    # What optimizers tell

    def optimizer_pre(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """`optimizer` is about to step. Only told where that is measured."""
        self._part.tracker.optimizer_pre(optimizer, args, kwargs)

    def optimizer_post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """It has: the step of the program may be over."""
        is_here = get_ident() == self._thread
        is_alone = id(optimizer) == self._only_optimizer
        if is_alone and is_here and self._steps_left > 1:
            self._stamps.append(perf_counter_ns())
            self._detector.number = next_sequence_number()
            self._graphs = 0
            self._steps_left -= 1
            return
        part, tracker = self._part, self._part.tracker
        if part.is_measured:
            tracker.optimizer_post(optimizer, args, kwargs)
        elif self._detector.is_inner(optimizer):
            return
        if is_here:
            self._tell_of_stamps()
            if not is_alone:
                self._only_optimizer = 0
            self._has_inner_steps |= tracker.site is not tracker.outside
            now_ns = tracker.last_end_ns() if part.is_measured else perf_counter_ns()
            tell_of_step(self._detector, tracker, optimizer, now_ns)

    def begin_closure(self) -> Callable[[], object]:
        """The optimizer calls the program (see `OwningTracker`)."""
        return self._part.tracker.begin_closure()

    # Runs of steps

    def _unseen_call_ended(self) -> None:
        """Of an outermost module, in a step that is not measured."""
        detector, number = self._detector, next_sequence_number()
        has_graph = number != detector.number and torch.is_grad_enabled()
        if has_graph and self._graphs < LEAST_LONG:  # nothing to be told of yet
            self._graphs += 1
            detector.number = number
            return
        self._tell_of_stamps()
        if has_graph or len(modules_on_stack()) == 1:  # else a part of a call
            detector.unseen_call_ended()

    def _tell_of_stamps(self) -> None:
        if self._stamps:
            self._part.has_steps = True
            self._kinds.add(True)
            self._detector.steps_ended(self._stamps)
            self._stamps.clear()
        self._detector.graphs_made(self._graphs)
        self._graphs = 0

    def _end_step(self, is_training: bool) -> None:
        self._part.has_steps = True
        self._kinds.add(is_training)
        self._steps_left -= 1
        if self._steps_left > 0 or not self._may_switch(is_training):
            return
        self._book_time()
        chosen = self._next_part()
        if chosen is not self._part:
            self._taps.close()
            self._part = chosen
            self._open()
        self._kinds.clear()
        self._run_ns, self._spans = 0, chosen.tracker.log.spans
        ended_ns, self._began_ns = self._began_ns, perf_counter_ns()
        self._unmeasured.time_ns += self._began_ns - ended_ns  # ours, of no step
        self._aside_ns += self._began_ns - ended_ns
        self._detector.leave_out(self._began_ns - ended_ns)

    def _may_switch(self, is_training: bool) -> bool:
        """Not if torch.compile would compile again, were hooks to come or go; nor in
        the middle of a call, which would then be seen in part."""
        if compile_shield.has_missed:
            return False
        # Calls that have hooks are over when their steps are.
        has_hooks = self._part.is_measured or self._taps.has_root_taps
        return has_hooks or not is_training or not modules_on_stack()

    def _next_part(self) -> _Part:
        """Book the run that has ended, and choose how to go on."""
        spans = self._part.tracker.log.spans - self._spans
        if self._part.is_measured:
            found = outermost_modules(self._part.tracker.outside)
            self._roots = [weakref.ref(module) for module in found]
        if self._part is self._warm_up:
            self._budget.book_warm_up(self._run_ns, spans)
            self._run = Run(is_measured=True)
        else:
            steps = self._run.steps - self._steps_left  # more, if it could not end
            ended = self._run._replace(steps=steps)
            aside_ns, self._aside_ns = self._aside_ns, 0
            kind = self._kinds.copy().pop() if len(self._kinds) == 1 else None
            self._run = self._budget.next(ended, self._run_ns, spans, aside_ns, kind)
        self._steps_left = self._run.steps
        return self._measured if self._run.is_measured else self._unmeasured

    def _book_time(self) -> None:
        now_ns = perf_counter_ns()
        self._part.time_ns += now_ns - self._began_ns
        self._run_ns += now_ns - self._began_ns
        self._began_ns = now_ns

    # Hooks

    def _open(self) -> None:
        tracker, is_measured = self._part.tracker, self._part.is_measured
        self._detector.follow(tracker, self._part.counter)
        self._only_optimizer = 0
        optimizer_hooks.tell_of_beginnings(self, is_measured)
        if is_measured:
            self._taps.open(tracker, lambda: Tap(tracker, optimizers=False), None)
        elif self._has_inner_steps or not self._detector.has_optimizer:
            self._taps.open(tracker, None, self._roots)
        else:
            self._taps.open(tracker, None, None)
            if self._detector.usual_calls <= MOST_WATCHED_CALLS:
                self._taps.watch(self._roots, self._unseen_call_ended)
            self._only_optimizer = self._detector.only_optimizer
