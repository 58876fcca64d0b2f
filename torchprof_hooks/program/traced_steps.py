"""The steps of a program that are traced: for its memory, and for idle devices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from torchprof_hooks.tracing.recorded_step import IdleStep, MemoryStep

if TYPE_CHECKING:
    from torchprof_hooks.profiles.program.program_profile import ProgramProfile

#: How many steps come before the first traced one, so that this is like later ones: the
#: warm-up, and a step in which functions are measured.
_STEPS_BEFORE: Final = 2


class TracedSteps:
    """Begins and ends traces between steps: first that for memory, then that for idle
    devices, each once."""

    def __init__(self, memory: bool, device_idle: bool) -> None:
        self._memory = MemoryStep() if memory else None
        self._idle = IdleStep() if device_idle else None
        self._coming = [found for found in (self._memory, self._idle) if found]

    def end(self, steps: int) -> None:
        """The step with this number is over."""
        for traced in (self._memory, self._idle):
            if traced is not None:
                traced.end(steps)

    def begin(self, steps: int) -> bool:
        """A step begins, after `steps` others. Returns whether it is traced."""
        if self._idle is not None and self._idle.is_running:
            return self._idle.go_on()
        if steps < _STEPS_BEFORE or not self._coming:
            return False
        return self._coming.pop(0).begin()

    def added_to(self, program: ProgramProfile) -> ProgramProfile:
        """The program with the results. The trace of an unfinished step is given up."""
        if self._memory is not None:
            self._memory.drop()
            replay = self._memory.replay()
            program = replace(program, replay=replay, not_replayed=self._memory.reason)
        if self._idle is not None:
            self._idle.drop()
            program = replace(program, device_idle=self._idle.find())
        return program
