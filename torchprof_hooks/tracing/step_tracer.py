"""Traces a step of a loop every so often."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

from torchprof_hooks.capture.tracing.recording import Wants
from torchprof_hooks.session.trigger_timer import SecondOrStepTimer
from torchprof_hooks.tracing.recorded_step import RecordedStep
from torchprof_hooks.tracing.trace_writer import TraceOptions, TraceWriter


class StepTracer:
    """Is told of each step of a loop, before and after it; records those at which
    `timer` is due, and hands them to a writer.

    timer: is asked before each step but the first one.
    directory: the folder of the files.
    trace_first: whether the first step is traced.
    skipped: how many steps were due while another profiler of torch was running.
    """

    def __init__(
        self,
        timer: SecondOrStepTimer,
        directory: Path,
        options: TraceOptions,
        trace_first: bool,
    ) -> None:
        self.writer = TraceWriter(options)
        self.skipped = 0
        self._timer = timer
        self._directory = directory
        self._trace_first = trace_first
        self._recording = RecordedStep(Wants(tensors=options.with_tensors))
        self._has_joined = False
        self._is_due = False
        self._next_step: int | None = None  # the number after the coming step, likely
        self._has_warned_of_failure = False

    @property
    def is_at_first(self) -> bool:
        """Whether no step has ended since `begin`."""
        return self._next_step is None

    def begin(self) -> None:
        """Make the output folder, and begin to count."""
        self._next_step = None
        self._join()
        # Absolute: the program may change its working directory.
        self.writer.directory = self._directory.absolute()
        try:
            self.writer.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self.writer.first_failure = str(error)
            self._warn_of_failures()

    def before_step(self) -> None:
        """Begin to record, if it is time."""
        self._join()
        self.drop()  # a step that was left by StopIteration
        if self._next_step is None:
            self._is_due = self._trace_first
        else:
            self._is_due = self._timer.should_trigger_for_step(self._next_step)
        if self._is_due and not self._recording.begin():
            self._skip()

    def after_step(self, before: int, step: int) -> None:
        """A step is over: `before` and `step` are its numbers before and after it."""
        if self._is_due:
            self._timer.update_last_triggered_step(step)
        elif self._next_step is None:
            self._timer.update_last_triggered_step(before)
        self._is_due = False
        self._next_step = step + 1
        self._recording.end(partial(self.writer.submit, step))
        self._warn_of_failures()

    def drop(self) -> None:
        """Give up the step that is being recorded, if any."""
        self._is_due = False
        self._recording.drop()

    def finish(self, is_failing: bool = False) -> None:
        """Stop tracing, and wait until all files are written.

        is_failing: whether an exception is being raised. Then there are no warnings:
            one that a filter turns into an error would replace the exception.
        """
        self.leave()
        self.writer.close()
        if not is_failing:
            self._warn_of_failures()

    def leave(self) -> None:
        """Record nothing more, until the next `begin` or step."""
        self.drop()
        self._has_joined = False
        self._recording.leave()

    def _join(self) -> None:
        if not self._has_joined:
            self._has_joined = True
            self._recording.join()
            self.writer.open()

    def _skip(self) -> None:
        self.skipped += 1
        if self.skipped == 1:
            warnings.warn(
                "ProfilerHook skips the trace of a step: another profiler of torch is "
                "running, and there can be only one. Further ones are counted in "
                "`skipped`.",
                stacklevel=2,
            )

    def _warn_of_failures(self) -> None:
        reason = self.writer.first_failure
        if reason is not None and not self._has_warned_of_failure:
            self._has_warned_of_failure = True
            warnings.warn(
                f"ProfilerHook cannot write to {str(self._directory)!r}: {reason}. "
                "Training goes on; traces not written are counted in `failed`.",
                stacklevel=2,
            )
