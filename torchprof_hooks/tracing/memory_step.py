"""Traces one step, so that its memory can be replayed."""

from __future__ import annotations

from torchprof_hooks.capture.tracing.kineto_session import Hold, kineto_sessions
from torchprof_hooks.capture.tracing.recording import Recording, Window
from torchprof_hooks.profiles.trace.memory_replay import MemoryReplay, replay_memory
from torchprof_hooks.tracing.uninterrupted import uninterrupted


class MemoryStep:
    """Records a step with torch's profiler, and replays its memory when asked.

    Use it in one thread: `begin()`, then `end()` or `drop()`. That can be repeated; the
    last step that ended counts. Torch's recording is kept as it is, some KB for each
    operation, until the replay is asked for. Reading it takes as long as a few steps,
    and at the end of the program no step has to wait for that.

    reason: why there is no replay, if there is not.
    """

    def __init__(self) -> None:
        self.reason = "no step was traced"
        self._hold: Hold | None = None
        self._recorded: tuple[Recording, Window] | None = None
        self._step = 0
        self._replay: MemoryReplay | None = None

    def begin(self) -> bool:
        """A step begins. Returns whether it is recorded, which it is not while another
        profiler of torch is running."""
        self.drop()
        kineto_sessions.join(self, wants_tensors=True)
        with uninterrupted():
            self._hold = kineto_sessions.start()
        if self._hold is None:
            kineto_sessions.leave(self)
            self.reason = "another profiler of torch was running"
            return False
        self.reason = "the traced step has not ended"
        return True

    def end(self, step: int) -> None:
        """The step with this number is over. If none was begun, nothing is done."""
        if self._hold is not None:
            with uninterrupted():
                hold, self._hold = self._hold, None
                self._step, self._recorded, self._replay = step, None, None
                kineto_sessions.stop(hold, self._keep)
                kineto_sessions.leave(self)

    def drop(self) -> None:
        """Give up the step that has begun. Steps recorded before are kept."""
        if self._hold is not None:
            with uninterrupted():
                hold, self._hold = self._hold, None
                kineto_sessions.drop(hold)
                kineto_sessions.leave(self)

    def replay(self) -> MemoryReplay | None:
        """The replay of the last step that was recorded; None for some `reason`."""
        if self._recorded is not None:
            (recording, window), self._recorded = self._recorded, None
            trace = recording.read(self._step, window, with_tensors=True)
            if trace.operations:
                self._replay = replay_memory(trace)
            else:
                self.reason = "torch has recorded no operation"
        return self._replay

    def _keep(self, recording: Recording, window: Window) -> None:
        if recording.is_lost:
            self.reason = "another profiler of torch began during the step"
        elif not recording.has_tensors:
            self.reason = "a hook that records no tensors was tracing the step already"
        else:
            self.reason = ""
            self._recorded = recording, window
