"""The steps of a program that are traced, for idle devices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from torchprof_hooks.tracing.recorded_step import IdleStep

if TYPE_CHECKING:
    from torchprof_hooks.profiles.program.program_profile import ProgramProfile

#: How many steps come before the first traced one, so that this is like later ones: the
#: warm-up, and a step in which functions are measured.
_STEPS_BEFORE: Final = 2


class TracedSteps:
    """Begins and ends a trace between steps, once."""

    def __init__(self) -> None:
        self._idle = IdleStep()
        self._is_coming = True

    def end(self, steps: int) -> None:
        """The step with this number is over."""
        self._idle.end(steps)

    def begin(self, steps: int) -> bool:
        """A step begins, after `steps` others. Returns whether it is traced."""
        if self._idle.is_running:
            return self._idle.go_on()
        if steps < _STEPS_BEFORE or not self._is_coming:
            return False
        self._is_coming = False
        return self._idle.begin()

    def added_to(self, program: ProgramProfile) -> ProgramProfile:
        """The program with the results. The trace of an unfinished step is given up."""
        self._idle.drop()
        return replace(program, device_idle=self._idle.find())
