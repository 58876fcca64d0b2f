"""What was booked in the longest steps, which is kept while measuring goes on."""

from __future__ import annotations

from dataclasses import replace
from heapq import heappush, heappushpop
from typing import TYPE_CHECKING, NamedTuple

from torchprof_hooks.kernel.observer import Observer
from torchprof_hooks.kernel.reading import Step
from torchprof_hooks.kernel.reference.span_log import NO_SUMS, Int64s, padded
from torchprof_hooks.profiles.step_times import MOST_SLOW

if TYPE_CHECKING:
    from torchprof_hooks.profiles.data import ProfileData


class Booked(NamedTuple):
    """What was booked in a step, or in several: nanoseconds by the code of the site, of
    calls that have ended in it."""

    duration_ns: int
    number: int
    booked_ns: Int64s

    def __lt__(self, other: Booked) -> bool:  # type: ignore[override]
        """In a heap, the shortest step comes first."""
        return self.duration_ns < other.duration_ns

    def __add__(self, other: Booked) -> Booked:  # type: ignore[override]
        size = max(len(self.booked_ns), len(other.booked_ns))
        return Booked(
            self.duration_ns + other.duration_ns,
            0,
            padded(self.booked_ns, size) + padded(other.booked_ns, size),
        )


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
                self._keep(found)
            else:
                self.others += found

    def _keep(self, found: Booked) -> None:
        if len(self.readings) < MOST_SLOW:
            heappush(self.readings, found)
        else:
            heappushpop(self.readings, found)

    def added_to(self, profile: ProfileData) -> ProfileData:
        """The profile, with the slowest steps in its history."""
        # imported when all is over
        from torchprof_hooks.instruments.slow_steps.differences import slowest_steps

        history = profile.step_history
        if not history.stretch_steps:
            return profile
        slowest = slowest_steps(self, profile.step_times)
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
