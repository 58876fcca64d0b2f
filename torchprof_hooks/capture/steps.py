"""Finds out where a training step ends, and which calls belong to none.

1. A step ends when torch's optimizer has stepped; with several optimizers, when each of
   those of the step before has (`OptimizerRounds`). So batches whose gradients are
   accumulated are one step.
2. Optimizers that step inside of a backward pass do so together, at its end; one that
   another optimizer calls does not count.
3. In a program without torch's optimizers, a step ends when the next forward begins
   after a backward pass; where no module was called before the pass, with the pass
   (`StepsWithoutOptimizer`).
4. A call from outside that makes no graph, while no step runs, is an evaluation.
5. It waits for nothing forever: it takes graphs that no backward pass uses for those of
   evaluations that forgot ``torch.no_grad()``; and passes after which no optimizer ever
   steps for steps of an optimizer that is not torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

import torch

from torchprof_hooks.capture.optimizer_rounds import OptimizerRounds
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.record.step_counter import StepCounter
from torchprof_hooks.capture.steps_without_optimizer import StepsWithoutOptimizer
from torchprof_hooks.capture.torch_names.autograd import next_sequence_number
from torchprof_hooks.capture.torch_names.modules import (
    error_of_call,
)
from torchprof_hooks.capture.tracking.tracker import Tracker

#: More than four times so many calls that made a graph, without a backward pass, are no
#: training step; nor are as many passes without a step of an optimizer. If the longest
#: step so far had more than this, its number counts instead.
_LONG: Final = 256


class Ended(NamedTuple):
    """Training steps and evaluation calls that have ended, and the time they took."""

    steps: int = 0
    steps_ns: int = 0
    evaluations: int = 0
    evaluation_ns: int = 0


def _nothing(*about: object) -> None:
    """The default callback."""


def made_graph(site: Site) -> bool:
    """Whether the call that has just ended at `site` has made a graph. New nodes do not
    prove it: custom Functions make some even where gradients are disabled."""
    return torch.is_grad_enabled() and next_sequence_number() != site.low


class StepDetector:
    """Follows the steps of one thread and counts them in `counter`, by the rules above.
    It is told of optimizers' steps, and of the end of each outermost call.

    on_boundary: called between two steps, while no call is open, so that another
        tracker may take over; not before `quiet_until_ns`.
    on_first: called when an optimizer has ended the first training step, and again if
        the step goes on with another optimizer.
    counter: where steps are counted; may be replaced at a boundary (see `follow`).
    rounds: what is known of optimizers.
    """

    def __init__(
        self,
        on_boundary: Callable[[], object] = _nothing,
        on_first: Callable[[], object] = _nothing,
    ) -> None:
        self._on_boundary = on_boundary
        self._on_first = on_first
        self.quiet_until_ns = 0
        self.counter = StepCounter()
        self.rounds = OptimizerRounds()
        self._began_ns = 0  # when the running step began
        self._running_ns = 0  # its time before the last `stop`
        self._is_running = False
        self._steps = 0
        self._has_evaluated = False
        self._calls = self._passes = 0  # of the step, so far
        self._longest = _LONG
        self._has_inner_passes = self._has_steps_in_calls = False
        self._boundary_is_due = False
        self._without_optimizer = StepsWithoutOptimizer()
        self._is_in_fresh_thread = next_sequence_number() == 0  # made no graph so far
        self._tracker: Tracker | None = None
        self._waited_ns = 0  # before the step that is running
        # When the last boundary was, 0: none yet; and how many steps had ended then.
        self._bounded_ns = self._bounded_steps = 0
        self._stopped_ns = 0

    # What is followed

    def follow(self, tracker: Tracker, counter: StepCounter) -> None:
        """From now on, calls are those that `tracker` sees; count in `counter`."""
        before = 0 if self._tracker is None else self._tracker.entered_ns
        self._without_optimizer.tracker_changed(tracker.entered_ns - before)
        self._tracker = tracker
        self.counter = counter
        self._waited_ns = tracker.exchanges.waited_ns
        self._bounded_steps = counter.steps

    def start(self) -> None:
        """Time counts from now on."""
        now_ns = perf_counter_ns()
        self._began_ns = now_ns - self._running_ns
        self._bounded_ns += now_ns - self._stopped_ns if self._bounded_ns else 0
        self._is_running = True

    def stop(self) -> None:
        """Time does not count until the next `start`."""
        if self._is_running:  # else an interrupt came before that
            self._stopped_ns = perf_counter_ns()
            self._running_ns = self._stopped_ns - self._began_ns
            self._is_running = False

    def renew(self) -> None:
        """After `stop`: end a profile with the steps of `counted`, and begin another;
        call `follow` with its tracker then. What is known of the program stays, and
        there is no first step any more."""
        uncounted = len(self._without_optimizer.held_ns) + self._is_last_counted()
        if uncounted:
            self._steps += uncounted
            self._without_optimizer.forget()
            self._begin(0)
            self._running_ns = 0
        self._bounded_ns = 0
        if self._steps:  # a new optimizer does not belong to the first step any more
            self._steps += 1

    def leave_out(self, duration_ns: int) -> None:
        """Do not count this much time of the running step: measuring took it."""
        self._began_ns += duration_ns
        self._bounded_ns += duration_ns
        self._without_optimizer.leave_out(duration_ns)

    def counted(self, end_ns: int | None = None) -> StepCounter:
        """The steps in `counter`, and those that are not in it yet: steps that may
        still be parts of one step, and the last step, if only the begin of the next one
        would show its end.

        end_ns: when the last step ended, if time still counts, and that is not now.
        """
        found, without = self.counter.copy(), self._without_optimizer
        found.after_backward_ns += without.after_backward_ns
        durations_ns = [*without.held_ns]
        if self._is_last_counted():
            if not self._is_running:
                end_ns = self._began_ns + self._running_ns
            ended_ns = perf_counter_ns() if end_ns is None else end_ns
            durations_ns.append(ended_ns - self._began_ns)
        for steps, duration_ns in enumerate(durations_ns, self._steps):
            found.count(duration_ns, is_first=not steps)
        return found

    def ended(self) -> Ended:
        """What has ended in `counter`, with the last step, as `counted` has it."""
        of = self.counter
        steps, steps_ns = of.steps, of.steps_ns
        if self._is_last_counted():
            steps, steps_ns = steps + 1, steps_ns + perf_counter_ns() - self._began_ns
        return Ended(steps, steps_ns, of.evaluations, of.evaluation_ns)

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
        if not self._tracker.passes:  # inside of a pass, more optimizers may step
            self._round_may_end(inside_call, now_ns)

    def _round_may_end(self, inside_call: bool, now_ns: int) -> None:
        ended = self.rounds.ended()
        if not ended.steps:
            return
        duration_ns = now_ns - self._began_ns
        if self._without_optimizer.held_ns:
            duration_ns += sum(self._without_optimizer.held_ns)
            self._without_optimizer.forget()
        self._begin(now_ns)
        # Does the first round go on, with one more optimizer?
        if ended.is_new and self._steps == 1 < len(self.rounds.living):
            self.counter.first_goes_on(duration_ns)
        else:
            self._count(duration_ns, ended.steps)
        if self._steps == 1:
            self._on_first()
        self._boundary_is_due = inside_call
        if not inside_call:
            self._boundary(now_ns)

    # Calls

    def expects_first_step(self) -> bool:
        """Whether the first training step is likely still to come, after evaluations:
        an optimizer was made, and nothing was trained, not even before `start`."""
        is_first = self._is_in_fresh_thread and not self._has_trained
        return is_first and self._without_optimizer.was_optimizer_made()

    @property
    def _has_trained(self) -> bool:
        """Whether a training step has ended, maybe one that is held back."""
        return self._steps > 0 or bool(self._without_optimizer.held_ns)

    def call_ended(self, site: Site, end_ns: int, outputs: object) -> None:
        """An outermost call, or a pass, has ended at `site`. There may be thousands of
        them in a step, so this makes few calls itself.

        outputs: None if it failed.
        """
        if outputs is None and error_of_call() is not None:
            return
        if site.phase == "backward":
            self._pass_ended(site, end_ns)
        elif site.phase == "forward" and site.module is not None:
            may_end = self._boundary_is_due or (self._passes and not self.rounds.living)
            if may_end and self._has_ended_step(site, end_ns):
                return
            if made_graph(site):
                self._graph_made()
            elif not self._calls:
                self._evaluation_ended(end_ns)

    def _has_ended_step(self, site: Site, end_ns: int) -> bool:
        """Whether a step has ended in the forward that has just ended, or with it. A
        step that ended before this forward is counted here, too."""
        if self._boundary_is_due:
            self._boundary_is_due = self._has_inner_passes = False
            self._passes = 0
            self._boundary(end_ns)
            return True
        if self._has_inner_passes:
            self._has_steps_in_calls = True
            self._step_without_optimizer(end_ns)
            if self._without_optimizer.no_optimizer_is_expected():
                self._boundary(end_ns)
            return True
        assert self._tracker is not None
        self._without_optimizer.came_after_backward(
            site, end_ns, self._tracker.entered_ns
        )
        self._step_without_optimizer(site.start_ns)
        return False

    def _evaluation_ended(self, end_ns: int) -> None:
        assert self._tracker is not None
        is_first = not (self._has_evaluated or self._has_trained)
        self.counter.evaluation(end_ns - self._began_ns, is_first=is_first)
        self._has_evaluated = True
        self._began_ns = end_ns
        self._waited_ns = self._tracker.exchanges.waited_ns
        self._boundary(end_ns)

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
            self._boundary(end_ns)
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
                self._boundary(end_ns)

    def _give_up(self) -> None:
        """Do not take what runs for one training step any more: count its passes as
        steps, or its calls as evaluations."""
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
        self._boundary(now_ns)

    def _step_without_optimizer(self, now_ns: int) -> None:
        assert self._tracker is not None
        duration_ns, without = now_ns - self._began_ns, self._without_optimizer
        without.usual_passes = self._passes
        self._begin(now_ns)
        if not without.no_optimizer_is_expected():
            without.hold(duration_ns)
            return
        if without.held_ns:
            # Dropped: it is that of all of them together.
            self._waited_ns = self._tracker.exchanges.waited_ns
        for held_ns in without.held_ns:
            self.counter.count(held_ns, is_first=not self._steps)
            self._steps += 1
        self.counter.after_backward_ns += without.after_backward_ns
        without.forget()
        self._count(duration_ns)

    def _boundary(self, now_ns: int) -> None:
        """No call is open: what was booked since the last boundary is that of one step,
        or of an evaluation call."""
        assert self._tracker is not None
        tracker, counter = self._tracker, self.counter
        # Without an optimizer, the begin of the next step counts this one.
        number = counter.steps + (self._passes > 0)
        is_step = counter.steps - self._bounded_steps == 1 and self._bounded_ns > 0
        if not is_step or number <= counter.first_steps:
            number = 0  # an evaluation call, the first step, or several
        duration_ns = now_ns - self._bounded_ns
        self._bounded_ns, self._bounded_steps = now_ns, counter.steps
        if number > 0 < duration_ns <= counter.slow_ns:  # a usual one
            tracker.log.end_step(duration_ns)
        else:
            tracker.slow_steps.step_ended(duration_ns, number)
        if now_ns >= self.quiet_until_ns:
            self._on_boundary()

    # Counting

    def _begin(self, now_ns: int) -> None:
        """A step has ended, and another one begins."""
        assert self._tracker is not None
        if (owners := self._tracker.memory_owners) is not None:
            owners.step_ended(self._steps + len(self._without_optimizer.held_ns) + 1)
        self._longest = max(self._longest, self._calls, self._passes)
        self._calls = self._passes = 0
        self._has_inner_passes = False
        self._began_ns = now_ns

    def _count(self, duration_ns: int, steps: int = 1) -> None:
        assert self._tracker is not None
        before_ns, self._waited_ns = self._waited_ns, self._tracker.exchanges.waited_ns
        self.counter.waited(self._waited_ns - before_ns, duration_ns, steps)
        self.counter.count(duration_ns, steps, is_first=not self._steps)
        self._steps += steps
