"""What was booked in the longest steps, which is kept while measuring goes on."""

from __future__ import annotations

import sys
from dataclasses import replace
from heapq import heappush, heappushpop
from typing import TYPE_CHECKING

from torchprof_hooks.instruments.slow_steps.booked import Booked
from torchprof_hooks.kernel.observer import Observer
from torchprof_hooks.kernel.reading import Step
from torchprof_hooks.kernel.reference.span_log import NO_SUMS, padded
from torchprof_hooks.profiles.step_times import MOST_SLOW

if TYPE_CHECKING:
    from torchprof_hooks.profiles.data import ProfileData


class SlowSteps(Observer):
    """Keeps what was booked in the longest steps.

    steps, steps_ns: how many training steps after the first have ended, and their time.
    readings: of the longest of those that may be slow: whether they are will be known
        in the end.
    others: what was booked outside of these steps: in the first one, in evaluations.
    """

    def __init__(self) -> None:
        self.steps = self.steps_ns = 0
        self.readings: list[Booked] = []  # a heap
        self.others = Booked(0, 0, NO_SUMS)

    def between_steps(self, step: Step) -> None:
        if step.number:
            self.steps += 1
            self.steps_ns += step.duration_ns
        if step.may_be_slow or not step.number:
            booked_ns = self.reading.booked_ns(in_step=True)
            found = Booked(step.duration_ns, step.number, booked_ns)
            if step.number:
                self._keep(found._replace(objects=sys.getallocatedblocks()))
            else:
                self.others += found

    def _keep(self, found: Booked) -> None:
        if len(self.readings) < MOST_SLOW:
            heappush(self.readings, found)
        else:
            heappushpop(self.readings, found)

    def added_to(self, profile: ProfileData) -> ProfileData:
        """The profile, with the slowest steps in its history."""
        history, times = profile.step_history, profile.step_times
        every = [*self.readings]  # once: the measured thread may add more
        found = [each for each in every if 0 < times.slow_ns < each.duration_ns]
        if not (history.stretch_steps and found):
            return profile
        # imported when all is over
        from torchprof_hooks.instruments.slow_steps.differences import slowest_steps

        slowest = slowest_steps(self.reading, times, found, *self.without(found))
        return replace(profile, step_history=replace(history, slowest=slowest))

    def without(self, found: list[Booked]) -> tuple[int, Booked]:
        """How many training steps there were but for these, and what was booked in
        them."""
        left_out = self.others
        for each in found:
            left_out += each
        until_now = self.reading.booked_ns()
        in_step = self.reading.booked_ns(in_step=True)
        until_now = until_now - padded(in_step, len(until_now))
        booked_ns = until_now - padded(left_out.booked_ns, len(until_now))
        duration_ns = self.steps_ns - sum(each.duration_ns for each in found)
        return self.steps - len(found), Booked(duration_ns, 0, booked_ns)
