"""Tells when a training step is over, or a call that belongs to none."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from time import perf_counter_ns
from typing import Any, Final

import torch

from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.record.step_counter import StepCounter
from torchprof_hooks.capture.sampling.steps.optimizer_rounds import OptimizerRounds
from torchprof_hooks.capture.sampling.steps.steps_without_optimizer import (
    StepsWithoutOptimizer,
)
from torchprof_hooks.capture.sampling.steps.untold_ends import (
    LEAST_LONG,
    NOTHING_ENDED,
    Ends,
)
from torchprof_hooks.capture.torch_names.autograd import next_sequence_number
from torchprof_hooks.capture.torch_names.modules import any_optimizer_made
from torchprof_hooks.capture.tracking.tracker import Tracker

#: Evaluations after which the first training step is not waited for any more, although
#: an optimizer was made: until then, they are looked at closely. Reinforcement learning
#: plays thousands before it learns, which would cost a short program several per cent.
MOST_EVALUATIONS: Final = 64


def _nothing(*about: object) -> None:
    """Called where nobody else is told."""


def made_graph(site: Site) -> bool:
    """Whether the call that has just ended at `site` has made a graph. New nodes alone
    do not tell: custom Functions make some even where gradients are disabled."""
    return torch.is_grad_enabled() and next_sequence_number() != site.low


class StepDetector:
    """Follows the steps of one thread and counts them in `counter` (see `StepTimes` for
    what a step is, and `OptimizerRounds` for several optimizers).

    It is told of optimizers' steps, and of the end of whatever was called from outside
    of all. A call in which a graph was made begins a training step, or is a part of the
    one that runs; a call without, while no training step runs, is an evaluation.
    Optimizers that step inside of a backward pass do so together, at its end.

    Without an optimizer of torch's: see `StepsWithoutOptimizer`.

    Nothing is waited for forever. Graphs that no backward pass uses are taken for those
    of evaluations that forgot ``torch.no_grad()``; and passes after which no optimizer
    ever steps, for steps of an optimizer that is not torch's.

    on_boundary: called at good moments to change the level: between two steps, when
        nothing is being called; with whether a training step has ended (else an
        evaluation).
    on_first: called when an optimizer has ended the first training step, and again if
        it turns out that the step goes on with another optimizer.
    counter: where steps are counted; may be replaced at a boundary (see `follow`).
    rounds: what is known of optimizers.
    """

    def __init__(
        self,
        on_boundary: Callable[[bool], object] = _nothing,
        on_first: Callable[[], object] = _nothing,
    ) -> None:
        self._on_boundary = on_boundary
        self._on_first = on_first
        self.counter = StepCounter()
        self.rounds = OptimizerRounds()
        self._began_ns = 0  # when the running step began
        self._running_ns = 0  # its time before the last `stop`
        self._is_running = False
        self._steps = 0
        self._has_evaluated = False
        self._calls = self._passes = 0  # of the step, so far
        self._longest = LEAST_LONG // 4
        self._has_inner_passes = self._has_steps_in_calls = False
        self._boundary_is_due = False
        self._without_optimizer = StepsWithoutOptimizer()
        self._is_in_fresh_thread = next_sequence_number() == 0  # made no graph so far
        self._tracker: Tracker | None = None
        self._sees_waiting = True
        self._waited_ns = 0  # before the step that is running

    # What is followed

    def follow(
        self, tracker: Tracker, counter: StepCounter, sees_waiting: bool = True
    ) -> None:
        """From now on, calls are those that `tracker` sees; count in `counter`.

        sees_waiting: whether it is told of communication.
        """
        before = 0 if self._tracker is None else self._tracker.entered_ns
        self._without_optimizer.tracker_changed(tracker.entered_ns - before)
        self._tracker = tracker
        self.counter = counter
        self._sees_waiting = sees_waiting
        self._waited_ns = tracker.exchanges.waited_ns

    def start(self) -> None:
        """Time counts from now on."""
        self._began_ns = perf_counter_ns() - self._running_ns
        self._is_running = True

    def stop(self) -> None:
        """Time does not count until the next `start`."""
        if self._is_running:  # else an interrupt came before that
            self._running_ns = perf_counter_ns() - self._began_ns
            self._is_running = False

    def renew(self) -> None:
        """After `stop`: a profile ends with what `counted` says, and another begins;
        call `follow` with its tracker. What is known of the program stays, and the
        first step does not come again."""
        uncounted = len(self._without_optimizer.held_ns) + self._is_last_counted()
        if uncounted:
            self._steps += uncounted
            self._without_optimizer.forget()
            self._begin(0)
            self._running_ns = 0
        if self._steps:  # a new optimizer is none of the first step's any more
            self._steps += 1

    def leave_out(self, duration_ns: int) -> None:
        """Do not count this much time of the running step: measuring took it."""
        self._began_ns += duration_ns
        self._without_optimizer.leave_out(duration_ns)

    def counted(
        self, untold: Ends = NOTHING_ENDED, end_ns: int | None = None
    ) -> StepCounter:
        """The steps in `counter`, and those that are not in it yet: steps that may
        still turn out to be parts of one step, and the last step, if only the begin of
        the next one would show its end.

        untold: what `tell` will be called with.
        end_ns: when the last step ended, if time counts still, and that is not now.
        """
        found, without = StepCounter(), self._without_optimizer
        found.add(self.counter)
        found.after_backward_ns += without.after_backward_ns
        ends = [self._began_ns, *untold.stamps]
        if self._is_last_counted():
            if not self._is_running:
                end_ns = self._began_ns + self._running_ns
            ends.append(perf_counter_ns() if end_ns is None else end_ns)
        durations_ns = [end_ns - began_ns for began_ns, end_ns in pairwise(ends)]
        steps = self._steps
        for duration_ns in (*without.held_ns, *durations_ns):
            found.count(duration_ns, is_first=not steps)
            steps += 1
        if untold.evaluations:
            duration_ns = untold.last_ns - ends[-1]
            is_first = not (steps or self._has_evaluated)
            found.evaluation(duration_ns, untold.evaluations, is_first=is_first)
        return found

    def _is_last_counted(self) -> bool:
        """Whether only the begin of the next step would show the end of this one."""
        if not self._passes or self.rounds.living:
            return False
        without = self._without_optimizer
        return bool(without.held_ns) or without.no_optimizer_is_expected()

    # Optimizers

    def optimizer_stepped(self, optimizer: Any, inside_call: bool, now_ns: int) -> None:
        """`optimizer` has made a step of its own."""
        assert self._tracker is not None
        self.rounds.stepped(optimizer)
        if not self._tracker.passes:  # inside of one, more optimizers may step
            self._round_may_end(inside_call, now_ns)

    def _round_may_end(self, inside_call: bool, now_ns: int) -> None:
        ended = self.rounds.ended()
        if not ended.steps:
            return
        duration_ns = now_ns - self._began_ns + sum(self._without_optimizer.held_ns)
        self._without_optimizer.forget()
        self._begin(now_ns)
        # Does the first round go on, with one more optimizer?
        if ended.is_new and self._steps == 1 < len(self.rounds.living):
            self.counter.first_ns += duration_ns
        else:
            self._count(duration_ns, ended.steps)
        if self._steps == 1:
            self._on_first()
        self._boundary_is_due = inside_call
        if not inside_call:
            self._on_boundary(True)

    def tell(self, ends: Ends) -> None:
        """All this has ended since the last boundary; there is nothing else to know of
        it."""
        for stamp_ns in ends.stamps:
            duration_ns = stamp_ns - self._began_ns
            self._begin(stamp_ns)
            self._count(duration_ns)
        if ends.evaluations:
            self._evaluations_ended(ends.evaluations, ends.last_ns)
        self._calls += ends.graphs

    # Calls

    def expects_first_step(self) -> bool:
        """Whether the first training step seems to be still to come, after evaluations:
        an optimizer was made, and nothing was trained, not even before this was
        started."""
        is_first = self._is_in_fresh_thread and not self._has_trained
        is_early = self.counter.evaluations < MOST_EVALUATIONS
        return is_first and is_early and any_optimizer_made()

    @property
    def _has_trained(self) -> bool:
        """Whether a training step has ended, maybe one that is held back."""
        return self._steps > 0 or bool(self._without_optimizer.held_ns)

    @property
    def is_idle(self) -> bool:
        """Whether no training step has begun, so that a call without a graph would be
        an evaluation."""
        return not (self._calls or self._passes or self._boundary_is_due)

    def call_ended(self, site: Site, end_ns: int) -> None:
        """A call from outside of all, or a pass, has ended at `site`."""
        if site.phase == "backward":
            self._pass_ended(site, end_ns)
        elif site.phase == "forward" and site.module is not None:
            self._forward_ended(site, end_ns)

    def _forward_ended(self, site: Site, end_ns: int) -> None:
        if self._boundary_is_due:
            self._boundary_is_due = self._has_inner_passes = False
            self._passes = 0
            self._on_boundary(True)
            return
        if self._passes and not self.rounds.living:
            if self._has_inner_passes:
                self._has_steps_in_calls = True
                self._step_without_optimizer(end_ns)
                if self._without_optimizer.no_optimizer_is_expected():
                    self._on_boundary(True)
                return
            assert self._tracker is not None
            self._without_optimizer.came_after_backward(
                site, end_ns, self._tracker.entered_ns
            )
            self._step_without_optimizer(site.start_ns)
        if made_graph(site):
            self._graph_made()
        elif not self._calls:
            self._evaluations_ended(1, end_ns)
            self._on_boundary(False)

    def _evaluations_ended(self, calls: int, last_ns: int) -> None:
        """So many evaluations have ended since the last boundary, all by `last_ns`."""
        is_first = not (self._has_trained or self._has_evaluated)
        self.counter.evaluation(last_ns - self._began_ns, calls, is_first=is_first)
        self._has_evaluated = True
        self._began_ns = last_ns
        self._new_waiting_ns()

    def _graph_made(self) -> None:
        self._calls += 1
        if not self._passes and self._calls > 4 * self._longest:
            self._give_up()

    def _pass_ended(self, site: Site, end_ns: int) -> None:
        assert self._tracker is not None
        self._passes += 1
        is_inside = site.caller is not site.caller.caller
        self._has_inner_passes |= is_inside
        if self.rounds.latest and not self._tracker.passes:
            self._round_may_end(True, end_ns)  # the boundary comes below
        if is_inside:
            return
        if self._boundary_is_due:
            self._boundary_is_due = False
            self._passes = 0
            self._on_boundary(True)
        elif self.rounds.living:
            if self._passes > 4 * self._longest:
                self._give_up()
        else:
            without = self._without_optimizer
            without.pass_ended(end_ns, self._tracker.entered_ns)
            is_usual = self._passes == without.usual_passes
            if not (self._calls or self._has_steps_in_calls):
                # There may be no forward that shows that it was the last one.
                self._step_without_optimizer(end_ns)
                is_usual = True
            if is_usual and without.no_optimizer_is_expected():
                self._on_boundary(True)

    def _give_up(self) -> None:
        """What is running is not one training step: count it as what it may be."""
        now_ns, calls, passes = perf_counter_ns(), self._calls, self._passes
        duration_ns = now_ns - self._began_ns
        self._calls = self._passes = 0
        self._began_ns = now_ns
        if passes:
            self.rounds.clear()
            self._count(duration_ns, passes)
        else:
            self.counter.evaluation(duration_ns, calls)
            self._has_evaluated = True
        self._on_boundary(bool(passes))

    def _step_without_optimizer(self, now_ns: int) -> None:
        duration_ns, without = now_ns - self._began_ns, self._without_optimizer
        without.usual_passes = self._passes
        self._begin(now_ns)
        if not without.no_optimizer_is_expected():
            without.hold(duration_ns)
            return
        if without.held_ns:
            self._new_waiting_ns()  # of all of them together
        for held_ns in without.held_ns:
            self.counter.count(held_ns, is_first=not self._steps)
            self._steps += 1
        self.counter.after_backward_ns += without.after_backward_ns
        without.forget()
        self._count(duration_ns)

    # Counting

    def _begin(self, now_ns: int) -> None:
        """A step has ended, and another one begins."""
        self._longest = max(self._longest, self._calls, self._passes)
        self._calls = self._passes = 0
        self._has_inner_passes = False
        self._began_ns = now_ns

    def _count(self, duration_ns: int, steps: int = 1) -> None:
        self.counter.count(duration_ns, steps, is_first=not self._steps)
        self._steps += steps
        waited_ns = self._new_waiting_ns()
        if self._sees_waiting:
            self.counter.waited(waited_ns, steps)

    def _new_waiting_ns(self) -> int:
        """How long the thread has waited since this was asked last."""
        assert self._tracker is not None
        before_ns, self._waited_ns = self._waited_ns, self._tracker.exchanges.waited_ns
        return self._waited_ns - before_ns
