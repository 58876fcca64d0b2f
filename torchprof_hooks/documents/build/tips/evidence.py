"""The numbers that tips rest on."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from torchprof_hooks.documents.words import percent
from torchprof_hooks.profiles.cells import outermost
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import BACKWARD_PHASES, Phase
from torchprof_hooks.profiles.program import Program
from torchprof_hooks.profiles.rows import Row

#: How `Row.inputs` end if no device but the CPU works on them ("?": it is not known).
_ON_CPU = ("@cpu", "@meta", "?", "mixed")


class Share(NamedTuple):
    """A part of the time of a run, or of its devices."""

    part_ns: int
    whole_ns: int
    devices: tuple[str, ...] = ()

    @property
    def fraction(self) -> float:
        """The part as a number from 0 to 1; 0.0 if the whole is 0."""
        return self.part_ns / self.whole_ns if self.whole_ns else 0.0

    def __str__(self) -> str:
        """``12.0 % of the time (1.200s)``."""
        place = " on " + ", ".join(self.devices) if self.devices else ""
        seconds = self.part_ns / 1e9
        return f"{percent(self.fraction)} of the time{place} ({seconds:.3f}s)"


class Turns(NamedTuple):
    """The unit that a program repeats: steps; or, if no optimizer steps, calls of
    the modules that are called from outside."""

    number: int
    noun: str


class Evidence:
    """A profile, and what is derived from it."""

    def __init__(self, profile: ProfileData) -> None:
        self.profile = profile
        self.program = profile.program or Program()

    @cached_property
    def calls(self) -> tuple[Row, ...]:
        """Calls of functions, by shapes and the module around; the one with the longest
        own time first."""
        rows = self.profile.rows("call")
        functions = (row for row in rows if row.kind == "function")
        return tuple(sorted(functions, key=lambda row: -row.self_ns))

    @cached_property
    def turns(self) -> Turns:
        """How many steps the program made, or calls of its model."""
        measured = self.program.measured
        steps = measured.steps - measured.traced or self.profile.steps
        if steps > 1:
            evaluates = self.profile.step_times.evaluations and measured.steps
            return Turns(steps, "step or evaluation call" if evaluates else "step")
        outer = {path[0] for path, _ in self.profile.cells}
        return Turns(
            sum(outermost(self.profile.cells, name).calls for name in outer),
            "call of the model",
        )

    def per_turn(self, count: int) -> float:
        """How often per step, or per call of the model (see `turns`), on average."""
        return count / max(self.turns.number, 1)

    def of_phases(self, *phases: Phase) -> Share:
        """The share of these phases in the time of all steps."""
        times = self.profile.phase_times_ns()
        part_ns = sum(times.get(phase, 0) for phase in phases)
        return Share(part_ns, self.profile.wall_ns)


def uses_device(row: Row) -> bool:
    """Whether an input of a function was on a device that is not the CPU."""
    return any(not kind.endswith(_ON_CPU) for kind in row.inputs)


def forward_ns(row: Row) -> int:
    """Own time outside of backward passes."""
    return sum(
        totals.self_ns
        for phase, totals in row.phases.items()
        if phase not in BACKWARD_PHASES
    )
