"""The hook that passes on what was measured, every so many steps or seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiler import Profiler, profile
from torchprof_hooks.profiles.options import (
    check_callable,
    check_file,
)
from torchprof_hooks.session.training_session import (
    RunContext,
    RunValues,
    SessionHook,
    TrainingSession,
)
from torchprof_hooks.session.trigger_timer import SecondOrStepTimer


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
