"""Chooses in which of the measured steps a device is stamped, by what stamps cost."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from random import Random
from time import perf_counter_ns
from typing import Any, Final

import numpy as np

from torchprof_hooks.capture.core.span_log import NO_SUMS, Int64s, at_length

#: Of the time of all measured steps, so much may be stamping.
SHARE: Final = 0.01
#: After the first step, which is slow, so many are stamped to learn what that costs.
LEARNED_FROM: Final = 7
#: At the least, one step in so many is stamped.
MOST: Final = 64

Factors = np.ndarray[Any, np.dtype[np.float64]]


class StampedSteps:
    """In the first steps, the device is stamped in all; then in one of `every`, at
    random, so as not to fall into a rhythm of the program. Device times of the other
    steps are estimated from these, by calls.

    steps, stamped: how many steps and evaluation calls have ended, and how many of
        them were stamped.
    """

    def __init__(self, meter: Any) -> None:
        self._meter = meter  # of the core
        self.steps = self.stamped = 0
        self._random = Random(0)  # not the program's
        self._began_ns = self._stamps_before = 0  # of the step
        self._stamps = self._wall_ns = 0  # in stamped steps after the first
        self._until_next = 0  # steps without stamps
        self._paused_at: Int64s | None = None  # calls by then; None: steps are stamped
        self._unstamped = NO_SUMS

    def begin(self) -> None:
        """Measuring begins, for the first time or again."""
        self._began_ns, self._stamps_before = perf_counter_ns(), self._meter.stamps

    def step_ended(self, calls: Callable[[], Int64s]) -> None:
        """A step has ended. Chooses whether the next one is stamped.

        calls: returns how many calls have ended, by code.
        """
        self.steps += 1
        if self._paused_at is None:
            self.stamped += 1
            self._learn()
        if self.stamped > LEARNED_FROM:
            self._choose(calls)
        self.begin()

    def factors(self, calls: Int64s, of_first_step: Int64s) -> Factors:
        """What to multiply the device time of each site after the first step by, to
        have that of all of its calls then. Of sites where no call has ended, such as
        what is outside of all calls, steps count instead.

        calls, of_first_step: how many calls have ended, and how many of them in the
            first step; both by code, of the same length.
        """
        later = calls - of_first_step
        stamped = later - at_length(self._unstamped_calls(calls), len(calls))
        of_steps = max(self.steps - 1, 1) / max(self.stamped - 1, 1)
        of_calls = (later / stamped.clip(min=1)).clip(min=1.0)
        return np.where(later > 0, of_calls, of_steps)

    def _unstamped_calls(self, calls: Int64s) -> Int64s:
        paused_at = self._paused_at
        if paused_at is None:
            return self._unstamped
        size = len(calls)
        return at_length(self._unstamped, size) + calls - at_length(paused_at, size)

    def _learn(self) -> None:
        if self.stamped > 1:
            self._stamps += self._meter.stamps - self._stamps_before
            self._wall_ns += perf_counter_ns() - self._began_ns

    def _choose(self, calls: Callable[[], Int64s]) -> None:
        if self._paused_at is None:
            every = self.every()
            self._until_next = self._random.randint(0, 2 * every - 2)
            if self._until_next:
                self._paused_at = calls()
                self._meter.is_stamping = False
            return
        self._until_next -= 1
        if not self._until_next:
            self._unstamped = self._unstamped_calls(calls())
            self._paused_at = None
            self._meter.is_stamping = True

    def every(self) -> int:
        """One step in so many is to be stamped."""
        cost_ns: int = self._stamps * self._meter.stamp_ns
        share = cost_ns / max(self._wall_ns - cost_ns, 1)
        return min(max(ceil(share / SHARE), 1), MOST)
