"""A Chrome trace of one step, every so often."""

from __future__ import annotations

import os
import time
import warnings
from _thread import get_ident
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType

from torchprof_hooks.instruments import between_traces, of_a_trace
from torchprof_hooks.instruments.kernels.recording import RecordingOptions
from torchprof_hooks.instruments.kernels.session import RecordedStep
from torchprof_hooks.kernel.attachments import attachments
from torchprof_hooks.profiles.options import (
    check_either,
    check_flag,
    check_path,
    check_whole,
)
from torchprof_hooks.session.trace_writer import TraceOptions, TraceWriter
from torchprof_hooks.session.training_session import (
    RunContext,
    RunValues,
    SessionHook,
    TrainingSession,
)
from torchprof_hooks.session.trigger_timer import SecondOrStepTimer


class ProfilerHook(SessionHook):
    """Writes a trace of one step every `save_steps` steps or `save_secs` seconds, to be
    opened in https://ui.perfetto.dev or chrome://tracing.

    A trace shows what torch's profiler records (operations, kernels), and above the
    thread that runs the step, its modules by qualified name: forward, backward and
    recompute. Between traced steps, no profiler runs. A background thread writes the
    files; all are complete when the hook ends.

    Use it in a `TrainingSession`, or as a context manager around any other loop. Like
    TensorFlow's hook of this name, it traces the step after a trigger. The file is
    called ``timeline-<step>.json``, by the number of the traced step, with
    ``-rank<rank>`` in a distributed job, and with ``-2``, ``-3``, ... if such a file
    exists already. By default, the first step is not traced.

    Args:
        save_steps: steps from one trace to the next.
        save_secs: seconds from one trace to the next.
        output_dir: the folder for the files, made if it is missing; by default the
            working directory.
        show_dataflow: whether to draw arrows from the operation that made a tensor to
            those that take it; in backward, along the autograd graph.
        show_memory: whether to show blocks of memory as objects, with dtype, shape and
            bytes, and the bytes in use on each device.
        trace_first: whether to trace the first step, too.
        compress: whether to write ``.json.gz``, which Perfetto opens, too.
        clock: a function that returns seconds.

    Raises:
        TypeError: a parameter has the wrong type.
        ValueError: both or neither of `save_steps` and `save_secs` is given, or one
            that is not positive.

    Example:
        >>> with ProfilerHook(save_secs=600, output_dir="traces") as hook:
        ...     for batch in loader:
        ...         train_step(batch)
        ...         hook.step()

    If another profiler of torch runs during a step, or another hook of this kind traces
    it, the hook does not trace the step, counts it in `skipped`, and warns once. It
    counts files that cannot be written in `failed`, and warns of the first; training
    goes on. A step that raises leaves no file.
    """

    def __init__(
        self,
        save_steps: float | None = None,
        save_secs: float | None = None,
        output_dir: str | os.PathLike[str] = "",
        show_dataflow: bool = True,
        show_memory: bool = False,
        *,
        trace_first: bool = False,
        compress: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_either(save_steps=save_steps, save_secs=save_secs)
        for name, value in {
            "show_dataflow": show_dataflow,
            "show_memory": show_memory,
            "trace_first": trace_first,
            "compress": compress,
        }.items():
            check_flag(name, value)
        self._timer = SecondOrStepTimer(save_secs, save_steps, clock=clock)
        self._directory = check_path("output_dir", output_dir)
        options = TraceOptions(show_dataflow, show_memory, compress)
        self._writer = TraceWriter(options)
        recorded = RecordingOptions(tensors=options.with_tensors)
        self._recording = RecordedStep(recorded, of_a_trace)
        self._trace_first = trace_first
        self._skipped = 0
        self._has_joined = False
        self._has_warned_of_failure = False
        self._is_due = False
        self._next_step: int | None = None  # likely, the number after the next step
        self._own_step: int | None = None  # the step of a loop without a session
        self._thread = 0  # the thread that runs that loop

    @property
    def paths(self) -> list[Path]:
        """The files that were written, so far."""
        return list(self._writer.paths)

    @property
    def skipped(self) -> int:
        """How many steps were not traced because another profiler of torch was
        running, or another hook traced them."""
        return self._skipped + self._writer.lost

    @property
    def failed(self) -> int:
        """How many traces could not be written."""
        return self._writer.failed

    # In a session

    def begin(self) -> None:
        """Make the output folder, and begin to count steps."""
        self._next_step = None
        self._join()
        # Absolute: the program may change its working directory.
        self._writer.directory = self._directory.absolute()
        try:
            self._writer.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._writer.first_failure = str(error)
            self._warn_of_failures()

    def before_run(self, run_context: RunContext) -> None:
        """Begin to trace, if that is due."""
        self._before_step()

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """If the step was traced, give the trace to the writer."""
        self._after_step(run_context.step, run_values.step)

    def on_stop_iteration(self, run_context: RunContext) -> None:
        """Discard the trace of a step that StopIteration has ended."""
        self._drop()

    def end(self, session: TrainingSession) -> None:
        """Wait for files that are being written."""
        self._finish()

    def on_exception(
        self, run_context: RunContext | None, error: BaseException
    ) -> None:
        """Discard the trace of the failed step, and keep those of earlier steps."""
        self._finish(is_failing=True)

    # As a context manager

    def __enter__(self) -> ProfilerHook:
        """Begin the first step."""
        try:
            self._own_step = 0
            self.begin()
            self._thread = get_ident()
            self._before_step()
        except BaseException:
            self._own_step = None
            self._finish(is_failing=True)
            raise
        return self

    def step(self, step: int | None = None) -> None:
        """Tell the hook that a step is over, and the next one begins.

        step: how many steps have ended by now, if training was resumed, or if several
            ended at once; by default 1 at the first call, then one more each time.

        Raises:
            RuntimeError: the hook is not entered in this thread (in a session, step()
                is not needed).
            TypeError: `step` is not an integer.
        """
        if self._own_step is None or self._thread != get_ident():
            raise RuntimeError(
                "step() is for use inside of `with ProfilerHook(...)`, in its thread"
            )
        step = self._own_step + 1 if step is None else check_whole("step", step)
        before = step - 1 if self._next_step is None else self._own_step
        self._own_step = step
        self._after_step(before, step)
        self._before_step()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._own_step = None
            self._finish(is_failing=error is not None)
        finally:
            self._leave()  # once more, as an interrupt may have come before it

    # In both

    def _join(self) -> None:
        if not self._has_joined:
            self._has_joined = True
            self._recording.join()
            self._writer.open()
            for each in between_traces():
                attachments.attach(each, self)

    def _before_step(self) -> None:
        """Begin to record, if that is due."""
        self._join()
        self._drop()  # a step that StopIteration has ended
        if self._next_step is None:
            self._is_due = self._trace_first
        else:
            self._is_due = self._timer.should_trigger_for_step(self._next_step)
        if self._is_due and not self._recording.begin():
            self._skipped += 1
            if self._skipped == 1:
                warnings.warn(
                    "ProfilerHook skips the trace of a step: another profiler of torch "
                    "is running, or another ProfilerHook traces it, and there can be "
                    "only one. Further ones are counted in `skipped`.",
                    stacklevel=3,
                )

    def _after_step(self, before: int, step: int) -> None:
        """End a step. before, step: how many steps there were before and after it."""
        if self._is_due:
            self._timer.update_last_triggered_step(step)
        elif self._next_step is None:
            self._timer.update_last_triggered_step(before)
        self._is_due = False
        self._next_step = step + 1
        self._recording.end(partial(self._writer.submit, step))
        self._warn_of_failures()

    def _drop(self) -> None:
        """Discard the step that is being recorded, if any."""
        self._is_due = False
        self._recording.drop()

    def _finish(self, is_failing: bool = False) -> None:
        """Stop tracing, and wait until all files are written.

        is_failing: whether an exception is propagating. Then there are no warnings: one
            that a filter turns into an error would replace the exception.
        """
        self._leave()
        self._writer.close()
        if not is_failing:
            self._warn_of_failures()

    def _leave(self) -> None:
        """Record nothing more, until the next `begin` or step."""
        self._drop()
        self._has_joined = False
        self._recording.leave()
        for each in between_traces():
            attachments.detach(each, self)

    def _warn_of_failures(self) -> None:
        reason = self._writer.first_failure
        if reason is not None and not self._has_warned_of_failure:
            self._has_warned_of_failure = True
            warnings.warn(
                f"ProfilerHook cannot write to {str(self._directory)!r}: {reason}. "
                "Training goes on; traces not written are counted in `failed`.",
                stacklevel=3,
            )
