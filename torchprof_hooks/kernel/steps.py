"""Finds out where a training step ends, by three rules, and which calls are in none.

1. A step ends with the last step of an optimizer before one steps again that has
   stepped in it. So optimizers that take turns share a step, batches whose gradients
   are accumulated are in one, and where a scaler skips the optimizer, the step goes on.
2. As long as none of torch's optimizers has stepped, each outermost backward pass is a
   step. If one was made, which may still step, the first `PATIENCE` passes wait for it.
3. Once `Profiler.step` has been called, steps end there and nowhere else.

A call from outside that makes no graph, before one of the same step that does, is an
evaluation, with those after it of modules without parameters, such as a loss. But if
there were some in the step before, and there are not `MANY` times as many now, they are
a part of the step: a teacher's before its student's.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from torchprof_hooks.kernel.ended_steps import EndedSteps
from torchprof_hooks.kernel.reading import Step
from torchprof_hooks.kernel.step_counter import StepCounter
from torchprof_hooks.kernel.torch_names.autograd import next_sequence_number
from torchprof_hooks.kernel.torch_names.modules import error_of_call
from torchprof_hooks.kernel.tracker import Tracker
from torchprof_hooks.kernel.tree import Site


class Boundaries:
    """Moments between two steps, or after evaluation calls, at which no call is open.

    on_boundary: called there, after the observers of the tracker.
    """

    def __init__(self, ended: EndedSteps, on_boundary: Callable[[], object]) -> None:
        self._ended = ended
        self._on_boundary = on_boundary
        self._last_ns = self._last_steps = 0  # the last one: when, and steps until then
        self._notified = 0  # observers, of so many steps

    def follow(self) -> None:
        """Steps are shown to another tracker from now on."""
        self._last_steps = self._ended.steps

    def notify(self, number: int) -> None:
        """The step of this number is over, maybe in the middle of a call."""
        tracker = self._ended.tracker
        # The pass of the first step has done so, where an optimizer steps then.
        if tracker is not None and number > self._notified:
            self._notified = number
            for notify in tracker.notified.step_ended:
                notify(number)

    def reach(self, now_ns: int) -> None:
        """No call is open: what was booked since the last boundary is that of one step,
        or of evaluation calls."""
        ended, tracker, steps = self._ended, self._ended.tracker, self._ended.steps
        if tracker is not None:
            counter, duration_ns = ended.counter, now_ns - self._last_ns
            number = counter.steps + (ended.ended_ns is not None)
            is_step = steps - self._last_steps == 1
            if not is_step or number <= counter.first_steps or steps == 1:
                number = 0  # evaluation calls, the first step, or several
            step = Step(number, duration_ns, duration_ns > counter.slow_ns)
            for notify in tracker.notified.between_steps:
                notify(step)
            tracker.log.end_step()
        ended.between(now_ns)
        self._last_ns, self._last_steps = now_ns, steps
        self._on_boundary()


class StepDetector:
    """Applies the rules above to one thread.

    ended: is told what has ended. Its clock is that of steps; moments that are told
        here are those of `perf_counter_ns`.
    on_boundary: called between two steps, or evaluation calls, while no call is open.
    ends_in_passes: whether the last step has ended in a backward pass.
    is_told: whether the program says where steps end.
    """

    def __init__(self, ended: EndedSteps, on_boundary: Callable[[], object]) -> None:
        self._ended = ended
        self._boundaries = Boundaries(ended, on_boundary)
        self.ends_in_passes = self.is_told = False
        self._stepped: dict[int, weakref.ref[Any]] = {}  # optimizers, in this step
        self._usual = 1  # optimizers in a step
        self._has_ended_in_call = False

    def follow(self, tracker: Tracker | None, counter: StepCounter) -> None:
        """Show steps to another tracker (see `EndedSteps.follow`)."""
        self._ended.follow(tracker, counter)
        self._boundaries.follow()

    def needs_passes(self) -> bool:
        """Whether backward passes have to be told, if nothing else is."""
        return not self.is_told and (not self._stepped or self.ends_in_passes)

    def step(self, inside_call: bool, now_ns: int) -> None:
        """The program says that a step ends here."""
        now_ns -= self._ended.clock.left_out_ns
        self.is_told = True
        self._stepped.clear()
        self._ended.passes.drop()
        self._ended.end(now_ns)
        self._ended.count_ended()
        self._may_bound(inside_call, now_ns)

    def optimizer_stepped(self, optimizer: Any, inside_call: bool, now_ns: int) -> None:
        """`optimizer` has made a step of its own."""
        if self.is_told:
            return
        ended, stepped, key = self._ended, self._stepped, id(optimizer)
        now_ns -= ended.clock.left_out_ns
        is_counted = bool(stepped) and ended.ended_ns is None
        if key in stepped or any(each() is None for each in stepped.values()):
            ended.count_ended()
            self._usual, is_counted = len(stepped), False
            stepped.clear()
        stepped[key] = weakref.ref(optimizer)
        ended.passes.drop()
        if not is_counted:  # else its time is that of the next step
            ended.end(now_ns, has_gone_on=len(stepped) > 1)
        self._may_bound(inside_call, now_ns)

    def call_ended(self, site: Site, end_ns: int, outputs: object) -> None:
        """An outermost call, or a pass, has ended at `site`. There may be thousands of
        them in a step, so this makes few calls itself.

        outputs: None if it failed.
        """
        tracker = self._ended.tracker
        if tracker is None:  # an interrupt came in the middle of `follow`
            return
        if outputs is None and error_of_call() is not None:
            return
        if site.phase == "backward":
            self._ended.passes.entered_ns = tracker.entered_ns
            if not tracker.passes:  # else it ran inside of another one
                self.pass_ended(site.caller is not site.caller.caller, end_ns)
        elif site.phase == "forward" and site.module is not None:
            self._forward_ended(tracker, site, end_ns)

    def _forward_ended(self, tracker: Tracker, site: Site, end_ns: int) -> None:
        ended = self._ended
        left_out_ns, duration_ns = ended.clock.left_out_ns, end_ns - site.start_ns
        end_ns -= left_out_ns
        if self._has_ended_in_call:
            self._call_is_over(end_ns)
            return
        if ended.passes.last_ns is not None:
            began_ns = site.start_ns - left_out_ns
            ended.passes.called(began_ns, end_ns, tracker.entered_ns)
        if torch.is_grad_enabled() and next_sequence_number() != site.low:
            # Custom Functions make nodes without gradients.
            ended.calls.has_graph = True
        elif ended.calls.has_graph or self.is_told or _is_no_call(site):
            return
        elif ended.called_without_graph(site, duration_ns, end_ns):
            self._boundaries.reach(end_ns)

    def pass_ended(self, inside_call: bool, now_ns: int) -> None:
        """A backward pass has ended that ran in no other one."""
        ended = self._ended
        now_ns -= ended.clock.left_out_ns
        if self._has_ended_in_call and not inside_call:
            self.ends_in_passes = bool(self._stepped)
            self._call_is_over(now_ns)
        elif not (self.is_told or self._stepped):
            if ended.passes.add(now_ns):
                ended.count_passes()
                self._may_bound(inside_call, now_ns)
            else:
                ended.calls.has_graph = False
                self._boundaries.notify(ended.counted + len(ended.passes.ends_ns))

    def _may_bound(self, inside_call: bool, now_ns: int) -> None:
        """A step may have ended: unless more optimizers are likely to step in it."""
        is_over = len(self._stepped) in (0, self._usual)
        if is_over:
            self._boundaries.notify(self._ended.steps)
        if inside_call:
            self._has_ended_in_call = True
        elif is_over:
            self._boundaries.reach(now_ns)

    def _call_is_over(self, end_ns: int) -> None:
        """A call, or a pass, in which a step has ended."""
        self._has_ended_in_call = self._ended.calls.has_graph = False
        if not self._stepped or len(self._stepped) >= self._usual:
            self._boundaries.reach(end_ns)


def _is_no_call(site: Site) -> bool:
    """Whether it is a block in which no module is called: one that makes batches."""
    return site.is_block() and not site.is_model()
