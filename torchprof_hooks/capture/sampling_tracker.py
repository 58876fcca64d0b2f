"""Trackers that look at functions in some of the steps only."""

from __future__ import annotations

from typing import Any

from torchprof_hooks.capture.function_taps import function_taps
from torchprof_hooks.capture.function_tracker import FunctionTracker
from torchprof_hooks.capture.meter_tracker import MeterTracker


class Sampling(FunctionTracker):
    """Follows modules in every step, and functions in one of `every`: the first, and
    then each that so many steps come after. Steps are those of optimizers, from the end
    of one to the end of the next; without any, all functions are followed.

    every: set it before the first step.
    sampled_steps: how many steps functions were followed in.
    """

    every = 1
    sampled_steps = 0

    def optimizer_post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Close a step of `optimizer`, and decide about the next one."""
        steps = self.steps
        super().optimizer_post(optimizer, args, kwargs)
        if self.steps == steps:
            return
        self.sampled_steps += self.mode is not None
        is_due = self.steps % self.every == 0
        if is_due and self.mode is None:
            function_taps.show_functions(self)
        elif not is_due and self.mode is not None:
            function_taps.hide_functions(self)


class SamplingMeterTracker(Sampling, MeterTracker):
    """The same with meters."""
