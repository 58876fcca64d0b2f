"""Hooks that act every so many steps or seconds: one prints how fast steps are, one
passes on what was measured."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiler import Profiler, profile
from torchprof_hooks.profiles.options import (
    check_callable,
    check_file,
    check_flag,
    check_whole,
    print_to,
)
from torchprof_hooks.session.training_session import (
    RunContext,
    RunValues,
    SessionHook,
    TrainingSession,
)
from torchprof_hooks.session.trigger_timer import SecondOrStepTimer


class StepTimerHook(SessionHook):
    """Measures how many steps a session runs per second, and prints it now and then.

    Args:
        every_steps: steps from one line to the next; 100, if `every_secs` is not given.
        every_secs: seconds from one line to the next.
        progress: whether to show a progress bar by tqdm instead of lines.
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

    def after_create_session(self, session: TrainingSession) -> None:
        """Start afresh, and show the bar."""
        self._timer.reset()
        self.steps_per_sec = None
        if self._make_bar is not None:
            file = self._file or sys.stderr
            self._bar = self._make_bar(
                total=self._total, initial=session.step, file=file, unit="step"
            )

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Count the step, and print how fast steps are, if that is due."""
        if self._bar is not None:
            self._bar.update(1)
        step = run_values.step
        if not self._timer.should_trigger_for_step(step):
            return
        seconds, steps = self._timer.update_last_triggered_step(step)
        if seconds and steps:
            self.steps_per_sec = steps / seconds
            if self._bar is None:
                print_to(self._file, f"step {step}: {self.steps_per_sec:.2f} steps/s")

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


class ReportHook(SessionHook):
    """Measures a session with `torchprof_hooks.profile`, in intervals: after each, it
    passes on the numbers of the interval, or prints its report.

    The last interval ends with the session, however that ends. Only the first one has
    the start-up. If only some steps are measured, an interval may have none of them.

    Args:
        every_steps: steps from one report to the next.
        every_secs: seconds from one report to the next.
        profiler: the profiler, made by `profile`; by default ``profile()``. Its
            `Profiler.profile` covers all intervals together.
        file: where to print reports; standard output by default.
        to: a function such as TensorBoard's ``SummaryWriter.add_scalar`` or
            ``mlflow.log_metric``, to call with ``(name, value, step)`` for each number
            of `Profile.scalars`. Then reports are printed only if `file` is given.
        clock: a function that returns seconds.

    Raises:
        TypeError: a parameter has the wrong type.
        ValueError: both or neither of `every_steps` and `every_secs` is given, or one
            that is not positive.

    Example:
        >>> writer = torch.utils.tensorboard.SummaryWriter()
        >>> numbers = ReportHook(every_steps=100, to=writer.add_scalar)
        >>> with TrainingSession([numbers]) as session:
        ...     for batch in loader:
        ...         session.run(train_step, batch)
    """

    def __init__(
        self,
        every_steps: float | None = None,
        every_secs: float | None = None,
        *,
        profiler: Profiler | None = None,
        file: TextIO | None = None,
        to: Callable[[str, float, int], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if profiler is not None and not isinstance(profiler, Profiler):
            raise TypeError(
                f"profiler must be a Profiler, as profile() makes it, not {profiler!r}"
            )
        check_file("file", file)
        if to is not None:
            check_callable("to", to)
        self._timer = SecondOrStepTimer(every_secs, every_steps, clock=clock)
        self._profiler = profile() if profiler is None else profiler
        self._file = file
        self._to = to
        self._is_measuring = False
        self._first_step = self._step = 0
        #: The profile of the last interval.
        self.profile: Profile | None = None

    def after_create_session(self, session: TrainingSession) -> None:
        """Begin to measure."""
        self._step = session.step
        self._timer.reset()
        self._timer.update_last_triggered_step(self._step)
        self._start()

    def before_run(self, run_context: RunContext) -> None:
        """Begin to measure again, if an earlier step had raised."""
        if not self._is_measuring:
            self._start()

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Report, if that is due."""
        self._step = run_values.step
        if self._timer.should_trigger_for_step(self._step):
            self._report()
            self._timer.update_last_triggered_step(self._step)
            self._start()

    def end(self, session: TrainingSession) -> None:
        """Report the last interval."""
        self._report()

    def on_exception(
        self, run_context: RunContext | None, error: BaseException
    ) -> None:
        """Report the last interval, so that what was measured is not lost."""
        self._report()

    def _start(self) -> None:
        self._first_step = self._step + 1
        self._profiler.start()
        self._is_measuring = True

    def _report(self) -> None:
        if not self._is_measuring:
            return
        self._is_measuring = False
        self._profiler.stop()
        taken = self._profiler.take()
        if self._step < self._first_step:
            return  # no step was completed since the last report
        self.profile = taken
        if self._to is None or self._file is not None:
            file = self._file or sys.stdout
            print(f"steps {self._first_step} to {self._step}", file=file)
            taken.print_report(file=file)
        if self._to is not None:
            for name, value in taken.scalars().items():
                self._to(name, value, self._step)
