"""Prints the report of a profiler every few steps or seconds, or writes its numbers."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import TextIO

import torch

from torchprof_hooks.profiler import Profiler, profile
from torchprof_hooks.profiles.names import TimeUnit
from torchprof_hooks.profiles.options import check_callable, check_file
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.reports.units import check_unit
from torchprof_hooks.session.session_hook import RunContext, RunValues, SessionHook
from torchprof_hooks.session.training_session import TrainingSession
from torchprof_hooks.session.trigger_timer import SecondOrStepTimer


class ReportHook(SessionHook):
    """Measures a session with `torchprof_hooks.profile`, and every so often prints a
    report of the interval since the last one, or passes its numbers on.

    A last report comes at the end of the session, however it ends. Only the first one
    has the start-up. With a budget, there may be one in which no step was measured.

    Args:
        every_steps: steps from one report to the next.
        every_secs: seconds from one report to the next.
        profiler: the profiler, made by `profile`; by default ``profile()``. Its
            `Profiler.profile` covers all intervals together.
        functions, memory: deprecated; give ``profiler=profile(functions=...)``.
        unit: as for `Profiler.print_report`.
        file: where to print; standard output by default.
        to: a function to call with ``(name, value, step)`` of `Profile.scalars`, one by
            one, such as TensorBoard's ``SummaryWriter.add_scalar`` or
            ``mlflow.log_metric``. Then reports are printed only if `file` is given.
        clock: a function that returns seconds.

    Raises:
        TypeError: a parameter has the wrong type.
        ValueError: both or neither of `every_steps` and `every_secs` is given, or one
            that is not positive; or `unit` is unknown.

    Example:
        >>> reports = ReportHook(every_secs=600, profiler=profile(max_overhead="1%"))
        >>> with TrainingSession([reports]) as session:
        ...     for batch in loader:
        ...         session.run(train_step, batch)
        steps 1 to 1290
        torchprof_hooks: 600.02sec wall, 1290 steps of 465.13ms, ...

        >>> writer = torch.utils.tensorboard.SummaryWriter()
        >>> numbers = ReportHook(every_steps=100, to=writer.add_scalar)
    """

    def __init__(
        self,
        every_steps: float | None = None,
        every_secs: float | None = None,
        *,
        profiler: Profiler | None = None,
        functions: bool | None = None,
        memory: bool | str | torch.device | None = None,
        unit: TimeUnit = "auto",
        file: TextIO | None = None,
        to: Callable[[str, float, int], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_unit(unit)
        check_file("file", file)
        if to is not None:
            check_callable("to", to)
        self._timer = SecondOrStepTimer(every_secs, every_steps, clock=clock)
        self._profiler = _checked_profiler(profiler, functions, memory)
        self._unit: TimeUnit = unit
        self._file = file
        self._to = to
        self._is_measuring = False
        self._first_step = 0
        self._step = 0
        #: The profile that the last report shows.
        self.profile: Profile | None = None

    def after_create_session(self, session: TrainingSession) -> None:
        """Begin to measure."""
        self._step = session.step
        self._timer.reset()
        self._timer.update_last_triggered_step(session.step)
        self._start()

    def before_run(self, run_context: RunContext) -> None:
        """Begin to measure again, if an earlier step has raised."""
        if not self._is_measuring:
            self._start()

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Print a report, if one is due."""
        self._step = run_values.step
        if self._timer.should_trigger_for_step(self._step):
            self._report()
            self._timer.update_last_triggered_step(self._step)
            self._start()

    def end(self, session: TrainingSession) -> None:
        """Print the last report."""
        self._report()

    def on_exception(
        self, run_context: RunContext | None, error: BaseException
    ) -> None:
        """Print the last report, so that what was measured is not lost."""
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
            taken.print_report(unit=self._unit, file=file)
        if self._to is not None:
            for name, value in taken.scalars().items():
                self._to(name, value, self._step)


def _checked_profiler(
    profiler: Profiler | None,
    functions: bool | None,
    memory: bool | str | torch.device | None,
) -> Profiler:
    if functions is None and memory is None:
        if profiler is not None and not isinstance(profiler, Profiler):
            raise TypeError(
                f"profiler must be a Profiler, as profile() makes it, not {profiler!r}"
            )
        return profile() if profiler is None else profiler
    if profiler is not None:
        raise TypeError(
            "profiler must be given without functions and memory, which it is made with"
        )
    made = profile(
        functions=False if functions is None else functions,
        memory=False if memory is None else memory,
    )
    warnings.warn(
        "functions and memory of ReportHook are deprecated: write "
        "ReportHook(profiler=profile(functions=..., memory=...))",
        DeprecationWarning,
        stacklevel=3,
    )
    return made
