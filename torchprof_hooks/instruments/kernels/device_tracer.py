"""Traces one step of a program, to find out what devices do in it."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from torchprof_hooks.instruments.kernels.recording import (
    Recording,
    RecordingOptions,
    Window,
)
from torchprof_hooks.instruments.kernels.session import RecordedStep
from torchprof_hooks.kernel.module_names import ModuleNames
from torchprof_hooks.kernel.observer import Observer
from torchprof_hooks.kernel.torch_names.profiler import shows_devices
from torchprof_hooks.measure.accelerator import (
    accelerator_in_use,
    wait_for_accelerator,
)
from torchprof_hooks.measure.uninterrupted import uninterrupted
from torchprof_hooks.profiles.trace.device_step import DeviceStep, find_device_step

if TYPE_CHECKING:
    from torchprof_hooks.profiles.data import ProfileData

    P = TypeVar("P", bound=ProfileData)

#: How many steps come before the traced ones, so that these are like later steps.
STEPS_BEFORE: Final = 2


class DeviceTracer:
    """Traces a step of a program, once: it records two steps, and evaluates the second.

    The device is synchronised before the first step, and by torch after the second. So
    all that the device runs in the second step was recorded, also work that the first
    step has left in the queue; and the host is as far ahead of the device as it can get
    in one step.

    Torch's recording stays as it is, some KB for each operation, until `found` reads
    it, which takes as long as a few steps.

    interrupting: makes the observers of what interrupts calls.
    reason: why there is nothing to read; "" if there is something.
    """

    def __init__(self, interrupting: Callable[[], Iterable[Observer]]) -> None:
        self.reason = "no step was traced: it takes four steps"
        options = RecordingOptions(operations=False)
        self._recording = RecordedStep(options, interrupting)
        self._has_begun = False
        self._start_ns = 0  # of the second step, 0 before
        self._recorded: tuple[int, Recording, Window] | None = None
        self._found: DeviceStep | None = None
        self._lock = threading.Lock()  # profiles are also asked for in other threads
        # Whoever forgets to stop a profiler leaves no recording behind.
        weakref.finalize(self, self._recording.drop).atexit = False

    @property
    def is_running(self) -> bool:
        """Whether a step is being recorded."""
        return self._recording.is_running

    @property
    def waits(self) -> bool:
        """Whether `between` must be called at each step."""
        return self.is_running or not self._has_begun

    def between(self, steps: int, names: ModuleNames | None = None) -> bool:
        """End a step, and begin the next one, after `steps` others. Returns whether
        that is recorded. If anything fails here, the program goes on without a trace.

        names: those of the modules.
        """
        try:
            self.end(steps)
            return self.begin(steps, names)
        except Exception as error:
            self._has_begun = True
            with suppress(Exception):
                self.drop()
            self.reason = f"tracing has failed: {error!r}"
            return False

    def begin(self, steps: int, names: ModuleNames | None = None) -> bool:
        """Begin a step, after `steps` others. Returns whether it is recorded: not while
        another profiler of torch is running."""
        if self.is_running:
            self._start_ns = time.perf_counter_ns()
            return True
        if self._has_begun or steps < STEPS_BEFORE:
            return False
        self._has_begun = True
        if accelerator_in_use() is None:
            self.reason = f"no device was in use after {steps} steps"
            return False
        if not shows_devices():
            self.reason = "this torch does not show what devices have run"
            return False
        self._recording.join()
        wait_for_accelerator()
        self.reason = "the traced step has not ended"
        if not self._recording.begin(names):
            self._recording.leave()
            self.reason = "another profiler of torch was running"
        return self.is_running

    def end(self, step: int) -> None:
        """End the step with this number. If it is the second recorded one, stop
        recording."""
        if self.is_running and self._start_ns:
            with uninterrupted():
                self._recording.end(lambda *recorded: self._keep(step, *recorded))
                self._recording.leave()

    def drop(self) -> None:
        """Discard the trace of a step that has not ended."""
        if self.is_running:
            with uninterrupted():
                self._recording.drop()
                self._recording.leave()

    def found(self) -> DeviceStep:
        """What devices did, or the reason why that is not known."""
        with self._lock:
            if self._recorded is not None:
                (step, recording, window), self._recorded = self._recorded, None
                self._found = find_device_step(recording.read_devices(step, window))
            return self._found or DeviceStep(reason=self.reason)

    def added_to(self, profile: P) -> P:
        """The profile, with what `found` returns."""
        return replace(profile, device_step=self.found())

    def _keep(self, step: int, recording: Recording, window: Window) -> None:
        self.reason = ""
        if recording.is_lost:
            self.reason = "another profiler of torch began during the step"
        else:
            self._recorded = step, recording, window._replace(start_ns=self._start_ns)
