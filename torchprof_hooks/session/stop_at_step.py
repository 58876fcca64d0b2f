"""Ends a training session after a number of steps."""

from __future__ import annotations

from torchprof_hooks.profiles.options import check_whole
from torchprof_hooks.session.session_hook import RunContext, RunValues, SessionHook
from torchprof_hooks.session.training_session import TrainingSession


class StopAtStepHook(SessionHook):
    """Asks the session to stop at a step, as TensorFlow's hook of this name does.

    Args:
        num_steps: how many steps this session runs.
        last_step: the number of the last step, where steps that were run before the
            session count as well.

    Raises:
        TypeError: the value is not an integer.
        ValueError: both or neither is given, or `num_steps` is not positive.

    Example:
        >>> with TrainingSession([StopAtStepHook(num_steps=1000)]) as session:
        ...     while not session.should_stop():
        ...         session.run(train_step, next(batches))
    """

    def __init__(
        self, num_steps: int | None = None, last_step: int | None = None
    ) -> None:
        if (num_steps is None) == (last_step is None):
            raise ValueError(
                "num_steps or last_step must be a whole number, and the other one "
                f"None, not num_steps={num_steps!r} and last_step={last_step!r}"
            )
        if num_steps is not None:
            num_steps = check_whole("num_steps", num_steps, least=1)
        if last_step is not None:
            last_step = check_whole("last_step", last_step)
        self._num_steps = num_steps
        self._last_step = last_step

    def after_create_session(self, session: TrainingSession) -> None:
        """Count from where the session starts."""
        if self._num_steps is not None:
            self._last_step = session.step + self._num_steps

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Ask for the stop, if it is time."""
        if self._last_step is not None and run_values.step >= self._last_step:
            run_context.request_stop()
