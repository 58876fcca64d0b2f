"""Says when something that happens every few steps or seconds is due."""

from __future__ import annotations

import time
from collections.abc import Callable

from torchprof_hooks.profiles.options import check_callable, check_either


class SecondOrStepTimer:
    """Says at which steps something is due, as TensorFlow's timer of this name does.

    The timer is due at the first step that it is asked about, and then whenever the
    given number of steps or seconds has passed since `update_last_triggered_step`, but
    at most once per step. If a trigger comes late, all later ones come later, too.

    Args:
        every_secs: seconds from one trigger to the next.
        every_steps: steps from one trigger to the next.
        clock: a function that returns seconds; unlike TensorFlow's, the default never
            goes backwards.

    Raises:
        TypeError: the value is not a number, or `clock` is not a function.
        ValueError: both or neither is given, or one that is not positive (NaN is not).

    Example:
        >>> timer = SecondOrStepTimer(every_steps=100)
        >>> if timer.should_trigger_for_step(step):
        ...     save(model)
        ...     timer.update_last_triggered_step(step)
    """

    def __init__(
        self,
        every_secs: float | None = None,
        every_steps: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_either(every_secs=every_secs, every_steps=every_steps)
        check_callable("clock", clock)
        self._every_secs = every_secs
        self._every_steps = every_steps
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Forget the last trigger: the timer is due at the next step."""
        self._last_step: int | None = None
        self._last_time = 0.0

    def last_triggered_step(self) -> int | None:
        """The step of the last trigger, None before the first."""
        return self._last_step

    def should_trigger_for_step(self, step: int) -> bool:
        """Whether the timer is due at `step`. Asking does not change the timer."""
        if self._last_step is None:
            return True
        if step == self._last_step:
            return False
        if self._every_steps is not None:
            return step >= self._last_step + self._every_steps
        assert self._every_secs is not None
        return self._clock() >= self._last_time + self._every_secs

    def update_last_triggered_step(
        self, step: int
    ) -> tuple[float, int] | tuple[None, None]:
        """Record a trigger at `step`, now.

        Returns:
            Seconds and steps since the last trigger; (None, None) at the first.
        """
        now, last_step, last_time = self._clock(), self._last_step, self._last_time
        self._last_step, self._last_time = step, now
        return (
            (None, None) if last_step is None else (now - last_time, step - last_step)
        )
