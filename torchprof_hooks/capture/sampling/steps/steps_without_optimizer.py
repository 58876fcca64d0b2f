"""Steps of programs in which none of torch's optimizers steps."""

from __future__ import annotations

from typing import Final

from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.record.step_counter import StepCounter
from torchprof_hooks.capture.torch_names.modules import any_optimizer_made

#: Steps without any optimizer after which none is expected, although one was made.
NO_OPTIMIZER_STEPS: Final = 256


class StepsWithoutOptimizer:
    """Such a step is over when the next forward begins after a backward pass; where no
    module was called before the pass, with the pass.

    While an optimizer might still step (one was made, and there were few steps so far)
    these steps are held back: they may turn out to be parts of one step, in which
    gradients are accumulated.

    held: what is held back.
    held_ns: how long that took in all.
    held_steps: how many steps that are.
    usual_passes: backward passes of the last step.
    """

    def __init__(self) -> None:
        self.held = StepCounter()
        self.held_steps = self.held_ns = 0
        self.usual_passes = 1
        self._expects_none = self._was_one_made = False
        # The backward pass that ended last: when, and what interruptions had taken.
        self._pass_ended_ns = self._interruptions_ns = 0

    def no_optimizer_is_expected(self) -> bool:
        """Whether each of these is a step by itself, not a part of a longer one."""
        if not self._expects_none:
            self._was_one_made = self._was_one_made or any_optimizer_made()
            is_late = self.held_steps >= NO_OPTIMIZER_STEPS
            self._expects_none = is_late or not self._was_one_made
        return self._expects_none

    def hold(self, duration_ns: int, is_first: bool) -> None:
        """Hold back a step that has ended: it may be a part of a longer one."""
        self.held_ns += duration_ns
        self.held_steps += 1
        self.held.count(duration_ns, is_first=is_first)

    def release_into(self, counter: StepCounter) -> int:
        """Count what was held back as steps, and return how many these are."""
        steps = self.held_steps
        counter.add(self.held)
        self.forget()
        return steps

    def forget(self) -> None:
        """Count nothing of what was held back: these are parts of one step."""
        if self.held_steps:
            self.held = StepCounter()
            self.held_steps = self.held_ns = 0

    def pass_ended(self, end_ns: int, interruptions_ns: int) -> None:
        """A backward pass has ended.

        interruptions_ns: what interruptions have taken so far, as the tracker says.
        """
        self._pass_ended_ns, self._interruptions_ns = end_ns, interruptions_ns

    def leave_out(self, duration_ns: int) -> None:
        """Do not count this much time since the last pass: measuring took it."""
        self._pass_ended_ns += duration_ns

    def tracker_changed(self, difference_ns: int) -> None:
        """Interruptions are counted by another tracker, whose sum is so much larger."""
        self._interruptions_ns += difference_ns

    def came_after_backward(
        self, site: Site, end_ns: int, interruptions_ns: int, counter: StepCounter
    ) -> None:
        """The call that ended at `site` is the first one after a backward pass: count
        the time between them, in `counter` or with what is held back."""
        call_ns = end_ns - site.start_ns
        others_ns = interruptions_ns - self._interruptions_ns - call_ns
        after_ns = site.start_ns - self._pass_ended_ns - others_ns
        where = counter if self._expects_none else self.held
        where.after_backward_ns += max(after_ns, 0)
