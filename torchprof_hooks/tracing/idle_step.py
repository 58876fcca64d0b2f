"""Traces one step, to see how much of it a device idled."""

from __future__ import annotations

import time

from torchprof_hooks.capture.torch_names.profiler import shows_devices
from torchprof_hooks.capture.tracing.recording import Recording, Wants, Window
from torchprof_hooks.measure.accelerator import wait_for_accelerator
from torchprof_hooks.measure.uninterrupted import uninterrupted
from torchprof_hooks.profiles.trace.device_idle import DeviceIdle, find_device_idle
from torchprof_hooks.tracing.recorded_step import RecordedStep


class IdleStep:
    """Records two steps with torch's profiler, and looks at the second one.

    The device is synchronised before the first step, and by torch after the second. So
    all that the device runs in the second step was recorded, also work that the first
    one has left in the queue, and the host is as far ahead of the device as it can get
    in one step.

    Use it in one thread: `begin()`, `go_on()` when the second step begins, and `end()`
    after each step; or `drop()`.
    """

    def __init__(self) -> None:
        self._reason = "no step was traced"
        self._recording = RecordedStep(Wants(operations=False))
        self._recorded: tuple[Recording, Window] | None = None
        self._step = 0
        self._start_ns = 0  # of the second step, 0 before
        self._found: DeviceIdle | None = None

    @property
    def is_running(self) -> bool:
        """Whether the step that begins now is recorded."""
        return self._recording.is_running

    def begin(self) -> bool:
        """The first step begins. Returns whether it is recorded: not while another
        profiler of torch is running, nor if this torch does not show devices."""
        self.drop()
        self._start_ns = 0
        if not shows_devices():
            self._reason = "this torch does not show what devices have run"
            return False
        self._recording.join()
        wait_for_accelerator()
        if not self._recording.begin():
            self._recording.leave()
            self._reason = "another profiler of torch was running"
            return False
        self._reason = "the traced step has not ended"
        return True

    def end(self, step: int) -> None:
        """The step with this number is over. If it was the second recorded step, the
        recording ends."""
        if not self.is_running or not self._start_ns:
            return
        with uninterrupted():
            self._step, self._found = step, None
            self._recording.end(self._keep)
            self._recording.leave()

    def go_on(self) -> bool:
        """The second step begins. Returns whether it is recorded."""
        if self.is_running:
            self._start_ns = time.perf_counter_ns()
        return self.is_running

    def drop(self) -> None:
        """Give up the step that has begun."""
        if self.is_running:
            with uninterrupted():
                self._recording.drop()
                self._recording.leave()

    def find(self) -> DeviceIdle:
        """How much the device idled, or the reason why that is not known."""
        if self._recorded is not None:
            (recording, window), self._recorded = self._recorded, None
            trace = recording.read_devices(self._step, window)
            self._found = find_device_idle(trace)
        return self._found or DeviceIdle(reason=self._reason)

    def _keep(self, recording: Recording, window: Window) -> None:
        if recording.is_lost:
            self._reason = "another profiler of torch began during the step"
        elif recording.end_ns < window.end_ns:
            self._reason = "a hook that was tracing a step ended the recording"
        else:
            self._recorded = recording, window._replace(start_ns=self._start_ns)
