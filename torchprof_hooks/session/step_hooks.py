"""A hook that tells how fast steps are."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from torchprof_hooks.profiles.options import (
    check_file,
    check_flag,
    check_whole,
    print_to,
)
from torchprof_hooks.session.session_hook import RunContext, RunValues, SessionHook
from torchprof_hooks.session.training_session import TrainingSession
from torchprof_hooks.session.trigger_timer import SecondOrStepTimer


class StepTimerHook(SessionHook):
    """Measures how many steps a session runs per second, and prints it now and then.

    Args:
        every_steps: steps from one line to the next; 100, if `every_secs` is not given.
        every_secs: seconds from one line to the next.
        progress: show a progress bar by tqdm instead of lines.
        total: the number of steps at which the bar is full.
        file: where lines and bar are printed; standard error by default.
        clock: a function that returns seconds.

    Raises:
        ImportError: a bar is asked for, and tqdm is not installed.
        TypeError: a parameter has the wrong type.
        ValueError: both `every_steps` and `every_secs` are given, or one that is not
            positive, or a negative `total`.

    Example:
        >>> with TrainingSession([StepTimerHook(every_steps=50)]) as session:
        ...     for batch in loader:
        ...         session.run(train_step, batch)
        step 51: 21.30 steps/s
        step 101: 21.52 steps/s

    Time between steps counts as well, such as waiting for data. The first step is left
    out: much of its work is done only once.
    """

    def __init__(
        self,
        every_steps: float | None = None,
        every_secs: float | None = None,
        *,
        progress: bool = False,
        total: int | None = None,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if every_steps is None and every_secs is None:
            every_steps = 100
        check_flag("progress", progress)
        if total is not None:
            total = check_whole("total", total, least=0)
        check_file("file", file)
        self._timer = SecondOrStepTimer(every_secs, every_steps, clock=clock)
        self._make_bar = _tqdm() if progress else None
        self._total = total
        self._file = file
        self._bar: Any = None
        #: Steps per second in the last interval; None before the first has ended.
        self.steps_per_sec: float | None = None

    def begin(self) -> None:
        """Start anew."""
        self._timer.reset()
        self.steps_per_sec = None

    def after_create_session(self, session: TrainingSession) -> None:
        """Show the bar."""
        if self._make_bar is not None:
            file = self._file or sys.stderr
            self._bar = self._make_bar(
                total=self._total, initial=session.step, file=file, unit="step"
            )

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Count the step, and print how fast steps are, if it is time."""
        if self._bar is not None:
            self._bar.update(1)
        step = run_values.step
        if not self._timer.should_trigger_for_step(step):
            return
        seconds, steps = self._timer.update_last_triggered_step(step)
        if seconds and steps:
            self.steps_per_sec = steps / seconds
            if self._bar is None:
                line = f"step {step}: {self.steps_per_sec:.2f} steps/s"
                print_to(self._file, line)

    def end(self, session: TrainingSession) -> None:
        """Close the bar."""
        self._close_bar()

    def on_exception(
        self, run_context: RunContext | None, error: BaseException
    ) -> None:
        """Close the bar."""
        self._close_bar()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _tqdm() -> Callable[..., Any]:
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError(
            "StepTimerHook(progress=True) needs tqdm: install it, or leave progress out"
        ) from error
    bar: Callable[..., Any] = tqdm
    return bar
