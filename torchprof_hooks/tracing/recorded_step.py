"""Records single steps with torch's profiler, and reads them when somebody asks."""

from __future__ import annotations

import time

from torchprof_hooks.capture.torch_names.profiler import shows_devices
from torchprof_hooks.capture.tracing.kineto_session import (
    Deliver,
    Hold,
    kineto_sessions,
)
from torchprof_hooks.capture.tracing.recording import Recording, Wants, Window
from torchprof_hooks.measure.accelerator import wait_for_accelerator
from torchprof_hooks.measure.uninterrupted import uninterrupted
from torchprof_hooks.profiles.trace.device_idle import DeviceIdle, find_device_idle
from torchprof_hooks.profiles.trace.memory_replay import MemoryReplay, replay_memory


class RecordedStep:
    """Records steps for one hook, one at a time. Signals that arrive while torch's
    profiler starts or stops are handled afterwards.

    wants: what to record, at least: other hooks that share a recording may want more.
    """

    def __init__(self, wants: Wants) -> None:
        self._wants = wants
        self._hold: Hold | None = None

    @property
    def is_running(self) -> bool:
        """Whether a step is being recorded."""
        return self._hold is not None

    def join(self) -> None:
        """The hook is in use from now on."""
        kineto_sessions.join(self, self._wants)

    def leave(self) -> None:
        """The hook is not in use any more."""
        kineto_sessions.leave(self)

    def begin(self) -> bool:
        """A step begins. Returns whether it is recorded: not while another profiler of
        torch is running."""
        with uninterrupted():
            self._hold = kineto_sessions.start()
        return self.is_running

    def end(self, deliver: Deliver) -> None:
        """The step is over; `deliver` gets the recording, if there is one."""
        if self._hold is not None:
            with uninterrupted():
                hold, self._hold = self._hold, None
                kineto_sessions.stop(hold, deliver)

    def drop(self) -> None:
        """Give up the step, if one is being recorded."""
        if self._hold is not None:
            with uninterrupted():
                hold, self._hold = self._hold, None
                kineto_sessions.drop(hold)


class ReadStep:
    """Records a step.

    Use it in one thread: `begin()`, then `end()` or `drop()`. That can be repeated; the
    last step that ended counts. Torch's recording is kept as it is, some KB for each
    operation, until it is asked for: reading it takes as long as a few steps, so that
    is best done at the end of the program, when no step has to wait.

    reason: why there is nothing to read, if there is not.
    """

    def __init__(self, wants: Wants) -> None:
        self.reason = "no step was traced"
        self._recording = RecordedStep(wants)
        self._recorded: tuple[int, Recording, Window] | None = None

    @property
    def is_running(self) -> bool:
        """Whether a step is being recorded."""
        return self._recording.is_running

    def begin(self) -> bool:
        """A step begins. Returns whether it is recorded: not while another profiler of
        torch is running."""
        self.drop()
        self._recording.join()
        self._make_ready()
        if not self._recording.begin():
            self._recording.leave()
            self.reason = "another profiler of torch was running"
            return False
        self.reason = "the traced step has not ended"
        return True

    def end(self, step: int) -> None:
        """The step with this number is over. If it is not recorded, nothing is done."""
        if self.is_running:
            with uninterrupted():
                self._recording.end(lambda *recorded: self._keep(step, *recorded))
                self._recording.leave()

    def drop(self) -> None:
        """Give up the step that has begun. Steps recorded before are kept."""
        if self.is_running:
            with uninterrupted():
                self._recording.drop()
                self._recording.leave()

    def _make_ready(self) -> None:
        """Called just before torch's profiler starts."""

    def _keep(self, step: int, recording: Recording, window: Window) -> None:
        if recording.is_lost:
            self.reason = "another profiler of torch began during the step"
        else:
            self.reason = self._missing(recording, window)
        if not self.reason:
            self._recorded = step, recording, window

    def _missing(self, recording: Recording, window: Window) -> str:
        """Why the recording of this step is of no use, "" if it is."""
        raise NotImplementedError


class MemoryStep(ReadStep):
    """Traces one step, so that its memory can be replayed."""

    def __init__(self) -> None:
        super().__init__(Wants(tensors=True))
        self._replay: MemoryReplay | None = None

    def replay(self) -> MemoryReplay | None:
        """The replay of the last recorded step; None if it has none (see `reason`)."""
        if self._recorded is not None:
            (step, recording, window), self._recorded = self._recorded, None
            trace = recording.read(step, window, with_tensors=True)
            if trace.operations:
                self._replay = replay_memory(trace)
            else:
                self.reason = "torch has recorded no operation"
        return self._replay

    def _missing(self, recording: Recording, window: Window) -> str:
        if recording.has_tensors:
            return ""
        return "a hook that records no tensors was tracing the step already"


class IdleStep(ReadStep):
    """Traces one step, to see how much of it a device idled: the second of two that are
    recorded.

    The device is synchronised before the first step, and by torch after the second. So
    all that the device runs in the second step was recorded, also work that the first
    one has left in the queue, and the host is as far ahead of the device as it can get
    in one step. Call `go_on()` when the second step begins, and `end()` after each.
    """

    def __init__(self) -> None:
        super().__init__(Wants(operations=False))
        self._start_ns = 0  # of the second step, 0 before
        self._found: DeviceIdle | None = None

    def begin(self) -> bool:
        """See `ReadStep`. Nor is it recorded if this torch does not show devices."""
        self._start_ns = 0
        if shows_devices():
            return super().begin()
        self.reason = "this torch does not show what devices have run"
        return False

    def go_on(self) -> bool:
        """The second step begins. Returns whether it is recorded."""
        if self.is_running:
            self._start_ns = time.perf_counter_ns()
        return self.is_running

    def end(self, step: int) -> None:
        """See `ReadStep`. The end of the first step is no end."""
        if self._start_ns:
            super().end(step)

    def find(self) -> DeviceIdle:
        """How much the device idled, or the reason why that is not known."""
        if self._recorded is not None:
            (step, recording, window), self._recorded = self._recorded, None
            self._found = find_device_idle(recording.read_devices(step, window))
        return self._found or DeviceIdle(reason=self.reason)

    def _make_ready(self) -> None:
        wait_for_accelerator()

    def _keep(self, step: int, recording: Recording, window: Window) -> None:
        super()._keep(step, recording, window._replace(start_ns=self._start_ns))

    def _missing(self, recording: Recording, window: Window) -> str:
        if recording.end_ns >= window.end_ns:
            return ""
        return "a hook that was tracing a step ended the recording"
