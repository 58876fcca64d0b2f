"""Chooses in which of the measured steps a device is stamped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from torchprof_hooks.capture.core.span_log import NO_SUMS, Int64s, at_length

#: So many steps are stamped at first, and then one in so many.
STAMPED: Final = 8

Factors = np.ndarray[Any, np.dtype[np.float64]]


class StampedSteps:
    """Until the first step has ended, and in `STAMPED` steps then, the device is
    stamped; later, in one of so many. Device times of the other steps are estimated
    from these, by calls.

    steps, stamped: how many steps and evaluation calls have ended, and how many of
        them were stamped.
    """

    def __init__(self, meter: Any) -> None:
        self._meter = meter  # of the core
        self.steps = self.stamped = self._before = 0  # the first training step
        self._paused_at: Int64s | None = None  # calls by then; None: steps are stamped
        self._unstamped = NO_SUMS

    def step_ended(self, calls: Callable[[], Int64s], is_start: bool) -> None:
        """A step has ended. Chooses whether the next one is stamped.

        calls: returns how many calls have ended, by code.
        is_start: whether the first training step has not ended yet.
        """
        self.steps += 1
        was_stamped = self._paused_at is None
        self.stamped += was_stamped
        if is_start:
            self._before = self.steps
        steps = self.steps - self._before
        is_stamped = steps < STAMPED or steps % STAMPED == 0
        if is_stamped and not was_stamped:
            self._unstamped = self._unstamped_calls(calls())
            self._paused_at = None
        elif was_stamped and not is_stamped:
            self._paused_at = calls()
        self._meter.is_stamping = is_stamped

    def factors(self, calls: Int64s, of_first_step: Int64s) -> Factors:
        """What to multiply the device time of each site after the first step by, to
        have that of all of its calls then. Of sites where no call has ended, such as
        what is outside of all calls, steps count instead.

        calls, of_first_step: how many calls have ended, and how many of them in the
            first step; both by code, of the same length.
        """
        later = calls - of_first_step
        stamped = later - at_length(self._unstamped_calls(calls), len(calls))
        first = self._before + 1
        of_steps = max(self.steps - first, 1) / max(self.stamped - first, 1)
        of_calls = (later / stamped.clip(min=1)).clip(min=1.0)
        return np.where(later > 0, of_calls, of_steps)

    def _unstamped_calls(self, calls: Int64s) -> Int64s:
        paused_at = self._paused_at
        if paused_at is None:
            return self._unstamped
        size = len(calls)
        return at_length(self._unstamped, size) + calls - at_length(paused_at, size)
