"""Traces one step, so that its memory can be replayed."""

from __future__ import annotations

from torchprof_hooks.capture.tracing.recording import Recording, Wants, Window
from torchprof_hooks.measure.uninterrupted import uninterrupted
from torchprof_hooks.profiles.trace.memory_replay import MemoryReplay, replay_memory
from torchprof_hooks.tracing.recorded_step import RecordedStep


class MemoryStep:
    """Records a step with torch's profiler, and replays its memory when asked.

    Use it in one thread: `begin()`, then `end()` or `drop()`. That can be repeated; the
    last step that ended counts. Torch's recording is kept as it is, some KB for each
    operation, until the replay is asked for: reading it takes as long as a few steps,
    so that is best done at the end of the program, when no step has to wait.

    reason: why there is no replay, if there is not.
    """

    def __init__(self) -> None:
        self.reason = "no step was traced"
        self._recording = RecordedStep(Wants(tensors=True))
        self._recorded: tuple[Recording, Window] | None = None
        self._step = 0
        self._replay: MemoryReplay | None = None

    def begin(self) -> bool:
        """A step begins. Returns whether it is recorded: not while another profiler of
        torch is running."""
        self.drop()
        self._recording.join()
        if not self._recording.begin():
            self._recording.leave()
            self.reason = "another profiler of torch was running"
            return False
        self.reason = "the traced step has not ended"
        return True

    def end(self, step: int) -> None:
        """The step with this number is over. If it is not recorded, nothing is done."""
        if self._recording.is_running:
            with uninterrupted():
                self._step, self._recorded, self._replay = step, None, None
                self._recording.end(self._keep)
                self._recording.leave()

    def drop(self) -> None:
        """Give up the step that has begun. Steps recorded before are kept."""
        if self._recording.is_running:
            with uninterrupted():
                self._recording.drop()
                self._recording.leave()

    def replay(self) -> MemoryReplay | None:
        """The replay of the last recorded step; None if it has none (see `reason`)."""
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
