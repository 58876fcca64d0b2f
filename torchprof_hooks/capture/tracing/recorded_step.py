"""Records single steps with torch's profiler."""

from __future__ import annotations

from torchprof_hooks.capture.record.module_names import ModuleNames
from torchprof_hooks.capture.tracing.kineto_session import (
    Deliver,
    SessionStep,
    kineto_sessions,
)
from torchprof_hooks.capture.tracing.recording import RecordingOptions
from torchprof_hooks.measure.uninterrupted import uninterrupted


class RecordedStep:
    """Records steps for one hook, one at a time. If a signal arrives while torch's
    profiler starts or stops, its handler runs afterwards.

    options: what to record, at least: other hooks that share a recording may want more.
    """

    def __init__(self, options: RecordingOptions) -> None:
        self._options = options
        self._step: SessionStep | None = None

    @property
    def is_running(self) -> bool:
        """Whether a step is being recorded."""
        return self._step is not None

    def join(self) -> None:
        """The hook is in use from now on."""
        kineto_sessions.join(self, self._options)

    def leave(self) -> None:
        """The hook is not in use any more."""
        kineto_sessions.leave(self)

    def begin(self, names: ModuleNames | None = None) -> bool:
        """A step begins. Returns whether it is recorded: not while another profiler of
        torch is running.

        names: those of the modules; None: its own.
        """
        with uninterrupted():
            self._step = kineto_sessions.start(names)
        return self.is_running

    def end(self, deliver: Deliver) -> None:
        """The step is over; `deliver` gets the recording, if there is one."""
        if self._step is not None:
            with uninterrupted():
                step, self._step = self._step, None
                kineto_sessions.stop(step, deliver)

    def drop(self) -> None:
        """Give up the step, if one is being recorded."""
        if self._step is not None:
            with uninterrupted():
                step, self._step = self._step, None
                kineto_sessions.drop(step)
