"""Steps of programs in which none of torch's optimizers steps."""

from __future__ import annotations

from typing import Final

from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.torch_names.modules import any_optimizer_made

#: After so many steps without any optimizer, we expect none, although one was made.
NO_OPTIMIZER_STEPS: Final = 256


class StepsWithoutOptimizer:
    """Steps of programs in which none of torch's optimizers steps.

    While an optimizer might still step (one was made, and there were few steps so far),
    these steps are held back, and not counted yet: they may be parts of one step, in
    which gradients are accumulated.

    held_ns: durations of the steps that are held back.
    after_backward_ns: see `StepCounter`; of these steps.
    usual_passes: backward passes of the last step.
    """

    def __init__(self) -> None:
        self.held_ns: list[int] = []
        self.after_backward_ns = 0
        self.usual_passes = 1
        self._expects_none = self._was_one_made = False
        # The backward pass that ended last: when, and what interruptions had taken.
        self._pass_ended_ns = self._interruptions_ns = 0

    def no_optimizer_is_expected(self) -> bool:
        """Whether each of these steps is one by itself, and not a part of a longer
        one."""
        if not (self._expects_none or self._was_one_made):
            self._expects_none = not self.was_optimizer_made()
        return self._expects_none

    def was_optimizer_made(self) -> bool:
        """Whether the program has made one of torch's optimizers."""
        self._was_one_made = self._was_one_made or any_optimizer_made()
        return self._was_one_made

    def hold(self, duration_ns: int) -> None:
        """Hold back a step that has ended: it may be a part of a longer one."""
        self.held_ns.append(duration_ns)
        self._expects_none = len(self.held_ns) >= NO_OPTIMIZER_STEPS

    def forget(self) -> None:
        """Hold nothing back any more."""
        self.held_ns.clear()
        self.after_backward_ns = 0

    def pass_ended(self, end_ns: int, interruptions_ns: int) -> None:
        """A backward pass has ended.

        interruptions_ns: the time of interruptions so far (`Cursor.entered_ns`).
        """
        self._pass_ended_ns, self._interruptions_ns = end_ns, interruptions_ns

    def leave_out(self, duration_ns: int) -> None:
        """Do not count this much time since the last pass: measuring took it."""
        self._pass_ended_ns += duration_ns

    def tracker_changed(self, difference_ns: int) -> None:
        """Another tracker counts interruptions from now on; its sum is so much
        larger."""
        self._interruptions_ns += difference_ns

    def came_after_backward(
        self, site: Site, end_ns: int, interruptions_ns: int
    ) -> None:
        """The call that ended at `site` is the first one after a backward pass: count
        the time between them."""
        call_ns = end_ns - site.start_ns
        others_ns = interruptions_ns - self._interruptions_ns - call_ns
        after_ns = site.start_ns - self._pass_ended_ns - others_ns
        self.after_backward_ns += max(after_ns, 0)
