"""Finds out where a training step ends, by three rules, and which calls are in none.

1. A step ends with the last step of an optimizer before one steps again that has
   stepped in it. So optimizers that take turns share a step, batches whose gradients
   are accumulated are in one, and where a scaler skips the optimizer, the step goes on.
2. As long as none of torch's optimizers has stepped, each outermost backward pass is a
   step. If one was made, which may still step, the first `PATIENCE` passes wait for it.
3. Once `Profiler.step` has been called, steps end there and nowhere else.

A call from outside that makes no graph, before one of the same step that does, is an
evaluation. But if there were such calls in the step before, and there are not `MANY`
times as many now, they are a part of the step: a teacher's before its student's.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final

import torch

from torchprof_hooks.kernel.reading import Step
from torchprof_hooks.kernel.step_counter import StepCounter
from torchprof_hooks.kernel.torch_names.autograd import next_sequence_number
from torchprof_hooks.kernel.torch_names.modules import (
    any_optimizer_made,
    error_of_call,
)
from torchprof_hooks.kernel.tracker import Tracker
from torchprof_hooks.kernel.tree import Site

#: After so many backward passes without any optimizer's step, none is expected.
PATIENCE: Final = 256
#: More than so many times the calls without a graph of the step before are evaluations.
MANY: Final = 4


class StepDetector:
    """Follows the steps of one thread and counts them in `counter`, by the rules above.

    A step that seems to have ended waits to be counted until the next one is seen to
    end, as another optimizer may step in it.

    on_boundary: called between two steps, or evaluation calls, while no call is open.
    on_first: called when the first training step has ended; again, if it goes on. In
        programs that make no optimizer, the first evaluation call counts, too.
    counter: where steps are counted (see `follow`).
    ends_in_passes: whether the last step has ended in a backward pass.
    is_told: whether the program says where steps end.
    """

    def __init__(
        self, on_boundary: Callable[[], object], on_first: Callable[[], object]
    ) -> None:
        self._on_boundary = on_boundary
        self._on_first = on_first
        self.counter = StepCounter()
        self.ends_in_passes = self.is_told = False
        self._tracker: Tracker | None = None
        self._is_running = False
        self._stopped_ns = 0  # when time stopped to count
        self._began_ns = 0  # the running step
        self._ended_ns = 0  # a step that is not counted yet; 0: there is none
        self._pass_ends_ns: list[int] = []  # likewise, if these should be steps
        self._passed_ns = self._entered_ns = 0  # the last pass: when, and entries then
        self._after_ns = 0  # what came after passes that ended steps
        self._bounded_ns = self._bounded_steps = 0  # the last boundary; 0: none yet
        self._waited_ns = self._waited_by_end_ns = 0
        self._steps = self._evaluations = 0  # counted
        self._stepped: dict[int, weakref.ref[Any]] = {}  # optimizers, in this step
        self._usual = 1  # optimizers in a step
        self._has_ended_in_call = self._has_graph = self._expects_none = False
        # Calls without a graph before the step's first one with a graph: in this step,
        # those that are evaluations, when the last one ended; and in the step before.
        self._before = self._apart = self._before_end_ns = self._usual_before = 0
        self._notified = 0  # observers, of so many steps

    # What is followed

    def follow(self, tracker: Tracker | None, counter: StepCounter) -> None:
        """From now on, count in `counter`, and calls are those that `tracker` sees;
        None: nothing but optimizers' steps and passes are told. Between two steps."""
        self._count_ended()
        self._count_after()
        self._tracker, self.counter = tracker, counter
        if tracker is not None:
            self._entered_ns = tracker.entered_ns
            self._waited_ns = self._waited_by_end_ns = tracker.waited_ns
        self._bounded_steps = self.steps
        self._passed_ns = 0

    def start(self) -> None:
        """Time counts from now on."""
        self.leave_out(perf_counter_ns() - self._stopped_ns)
        self._is_running = True

    def stop(self) -> None:
        """Time does not count until the next `start`."""
        if self._is_running:  # else an interrupt came before that
            self._stopped_ns = perf_counter_ns()
            self._is_running = False

    def renew(self) -> None:
        """After `stop`: end a profile with the steps of `counted`, and begin another;
        call `follow` with its tracker then. What is known of the program stays, and
        there is no first step any more."""
        self._count_ended()
        self._count_passes()
        self._count_calls()

    def leave_out(self, duration_ns: int) -> None:
        """Do not count the last `duration_ns`: they are no time of the program's."""
        self._began_ns += duration_ns
        self._bounded_ns += duration_ns
        self._before_end_ns += duration_ns
        self._passed_ns += duration_ns if self._passed_ns else 0
        self._ended_ns += duration_ns if self._ended_ns else 0
        self._pass_ends_ns = [end_ns + duration_ns for end_ns in self._pass_ends_ns]

    @property
    def steps(self) -> int:
        """How many training steps have ended."""
        return self._steps + (self._ended_ns > 0)

    @property
    def ended(self) -> int:
        """How many training steps and evaluation calls have ended."""
        return self.steps + self._evaluations

    def needs_passes(self) -> bool:
        """Whether backward passes have to be told, if nothing else is."""
        return not self.is_told and (not self._stepped or self.ends_in_passes)

    def counted(self) -> StepCounter:
        """The steps in `counter`, and what has ended and is not in it yet."""
        found, began_ns = self.counter.copy(), self._began_ns
        found.after_backward_ns += self._after_ns
        ends_ns = [self._ended_ns] if self._ended_ns else []
        if not (self._ended_ns or self._is_running):  # no optimizer steps any more
            ends_ns = [*self._pass_ends_ns]
        if self._ended_ns:
            waited_ns = self._waited_by_end_ns - self._waited_ns
            found.waited(waited_ns, self._ended_ns - began_ns)
        for steps, end_ns in enumerate(ends_ns, self._steps):
            found.count(end_ns - began_ns, is_first=not steps)
            began_ns = end_ns
        if self._before > self._apart:
            calls = self._before - self._apart
            found.evaluation(self._before_end_ns - began_ns, calls)
        return found

    # What is told

    def step(self, inside_call: bool, now_ns: int) -> None:
        """The program says that a step ends here."""
        self.is_told = True
        self._stepped.clear()
        self._drop_passes()
        self._end(now_ns)
        self._count_ended()
        self._may_bound(inside_call, now_ns)

    def optimizer_stepped(self, optimizer: Any, inside_call: bool, now_ns: int) -> None:
        """`optimizer` has made a step of its own."""
        if self.is_told:
            return
        stepped, key = self._stepped, id(optimizer)
        is_counted = bool(stepped) and not self._ended_ns
        if key in stepped or any(each() is None for each in stepped.values()):
            self._count_ended()
            self._usual, is_counted = len(stepped), False
            stepped.clear()
        stepped[key] = weakref.ref(optimizer)
        self._drop_passes()
        if not is_counted:  # else its time is that of the next step
            self._end(now_ns)
        self._may_bound(inside_call, now_ns)

    def call_ended(self, site: Site, end_ns: int, outputs: object) -> None:
        """An outermost call, or a pass, has ended at `site`. There may be thousands of
        them in a step, so this makes few calls itself.

        outputs: None if it failed.
        """
        if self._tracker is None:  # an interrupt came in the middle of `follow`
            return
        if outputs is None and error_of_call() is not None:
            return
        if site.phase == "backward":
            self._entered_ns = self._tracker.entered_ns
            if not self._tracker.passes:  # else it ran inside of another one
                self.pass_ended(site.caller is not site.caller.caller, end_ns)
        elif site.phase == "forward" and site.module is not None:
            self._forward_ended(site, end_ns)

    def _forward_ended(self, site: Site, end_ns: int) -> None:
        if self._has_ended_in_call:
            self._call_is_over(end_ns)
            return
        if self._passed_ns:
            self._came_after_backward(site, end_ns)
        if torch.is_grad_enabled() and next_sequence_number() != site.low:
            self._has_graph = True  # custom Functions make nodes without gradients
        elif not (self._has_graph or self.is_told):
            self._called_without_graph(end_ns)

    def pass_ended(self, inside_call: bool, now_ns: int) -> None:
        """A backward pass has ended that ran in no other one."""
        if self._has_ended_in_call and not inside_call:
            self.ends_in_passes = bool(self._stepped)
            self._call_is_over(now_ns)
        elif not (self.is_told or self._stepped):
            self._pass_ends_ns.append(now_ns)
            self._passed_ns = now_ns
            if self._expects_no_optimizer():
                self._count_passes()
                self._may_bound(inside_call, now_ns)
            else:
                self._has_graph = False
                self._notify(self._steps + len(self._pass_ends_ns))

    def _expects_no_optimizer(self) -> bool:
        self._expects_none = (
            self._expects_none
            or len(self._pass_ends_ns) >= PATIENCE
            or not any_optimizer_made()
        )
        return self._expects_none

    def _came_after_backward(self, site: Site, end_ns: int) -> None:
        """The call that ended at `site` is the first one after a step without an
        optimizer of torch's: most likely, another one has stepped in between."""
        assert self._tracker is not None
        others_ns = self._tracker.entered_ns - self._entered_ns - end_ns + site.start_ns
        after_ns = site.start_ns - self._passed_ns - others_ns
        self._after_ns += max(after_ns, 0)
        self._passed_ns = 0

    def _count_after(self) -> None:
        if not self._pass_ends_ns:
            self.counter.after_backward_ns += self._after_ns
            self._after_ns = 0

    def _drop_passes(self) -> None:
        """They are parts of a step."""
        if self._pass_ends_ns:
            self._pass_ends_ns.clear()
            self._after_ns = self._passed_ns = 0

    # Evaluation calls

    def _called_without_graph(self, end_ns: int) -> None:
        self._before += 1
        self._before_end_ns = end_ns
        if self._before <= MANY * self._usual_before:
            return  # a part of the step, if one comes
        is_first = not self.ended
        self._count_ended()
        self._count_calls(is_first)
        if is_first and not any_optimizer_made():
            self._on_first()
        self._boundary(end_ns)

    def _count_calls(self, is_first: bool = False) -> None:
        """Those that wait for a step are evaluations."""
        if calls := self._before - self._apart:
            duration_ns = self._before_end_ns - self._began_ns
            self.counter.evaluation(duration_ns, calls, is_first=is_first)
            self._evaluations += calls
            self._apart, self._began_ns = self._before, self._before_end_ns
            if self._tracker is not None:  # what they have waited is in no step
                self._waited_ns = self._tracker.waited_ns

    # Steps

    def _end(self, now_ns: int) -> None:
        """The running step ends here, as far as it is known."""
        self._ended_ns = now_ns
        self._has_graph = False
        if self._tracker is not None:
            self._waited_by_end_ns = self._tracker.waited_ns
            if self._before or len(self._stepped) <= 1:  # else the step has gone on
                self._usual_before, self._before, self._apart = self._before, 0, 0
        if not self._steps:
            self._on_first()

    def _count_ended(self) -> None:
        if self._ended_ns:
            waited_ns = self._waited_by_end_ns - self._waited_ns
            self._waited_ns = self._waited_by_end_ns
            ended_ns, self._ended_ns = self._ended_ns, 0
            self._count(ended_ns, waited_ns)

    def _count_passes(self) -> None:
        ends_ns, self._pass_ends_ns = self._pass_ends_ns, []
        for end_ns in ends_ns:
            self._end(end_ns)
            self._count_ended()
        self._count_after()

    def _count(self, ended_ns: int, waited_ns: int) -> None:
        duration_ns = ended_ns - self._began_ns
        self.counter.waited(waited_ns, duration_ns)
        self.counter.count(duration_ns, is_first=not self._steps)
        self._steps += 1
        self._began_ns = ended_ns

    # Boundaries

    def _may_bound(self, inside_call: bool, now_ns: int) -> None:
        """A step may have ended: unless more optimizers are likely to step in it."""
        is_over = len(self._stepped) in (0, self._usual)
        if is_over:
            self._notify(self.steps)
        if inside_call:
            self._has_ended_in_call = True
        elif is_over:
            self._boundary(now_ns)

    def _notify(self, number: int) -> None:
        # The pass of the first step has done so, where an optimizer steps then.
        if self._tracker is not None and number > self._notified:
            self._notified = number
            for notify in self._tracker.notified.step_ended:
                notify(number)

    def _call_is_over(self, end_ns: int) -> None:
        """A call, or a pass, in which a step has ended."""
        self._has_ended_in_call = self._has_graph = False
        if not self._stepped or len(self._stepped) >= self._usual:
            self._boundary(end_ns)

    def _boundary(self, now_ns: int) -> None:
        """No call is open: what was booked since the last boundary is that of one step,
        or of evaluation calls."""
        if self._tracker is not None:
            self._book_step(self._tracker, now_ns)
        self._bounded_ns, self._bounded_steps = now_ns, self.steps
        self._on_boundary()

    def _book_step(self, tracker: Tracker, now_ns: int) -> None:
        counter, duration_ns = self.counter, now_ns - self._bounded_ns
        number = counter.steps + (self._ended_ns > 0)
        is_step = self.steps - self._bounded_steps == 1 and self._bounded_ns > 0
        if not is_step or number <= counter.first_steps or self.steps == 1:
            number = 0  # evaluation calls, the first step, or several
        may_be_slow = duration_ns > counter.slow_ns
        tracker.between_steps(Step(number, duration_ns, may_be_slow))
