"""The numbers that tips rest on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from torchprof_hooks.profiles.cells import outermost
from torchprof_hooks.profiles.names import BACKWARD_PHASES, Phase
from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.reports.row_table import device_time
from torchprof_hooks.reports.table import plural

#: How `Row.inputs` end if no device but the CPU works on them ("?": it is not known).
_ON_CPU = ("@cpu", "@meta", "?", "mixed")


class Tip(NamedTuple):
    """What is the case, and what to do about it, if that is not plain.

    Both are kept apart: names of calls have colons, too, so that the text alone does
    not tell where the remedy begins.
    """

    claim: str
    remedy: str = ""

    def __str__(self) -> str:
        """Both as one paragraph."""
        return f"{self.claim}: {self.remedy}" if self.remedy else self.claim


class Share(NamedTuple):
    """A part of the time of a program, or of its devices."""

    part_ns: int
    whole_ns: int
    devices: tuple[str, ...] = ()

    @property
    def fraction(self) -> float:
        """The part as a number from 0 to 1; 0.0 if the whole is 0."""
        return self.part_ns / self.whole_ns if self.whole_ns else 0.0

    def __str__(self) -> str:
        """``12.0% of the time (1.200s)``."""
        place = " on " + ", ".join(self.devices) if self.devices else ""
        seconds = self.part_ns / 1e9
        return f"{100 * self.fraction:.1f}% of the time{place} ({seconds:.3f}s)"


class Turns(NamedTuple):
    """The unit that a program repeats: steps; or, if no optimizer steps, calls of
    the modules that are called from outside."""

    number: int
    noun: str


class Evidence:
    """A program, and what is derived from it."""

    def __init__(self, program: ProgramProfile) -> None:
        self.program = program

    @cached_property
    def calls(self) -> tuple[Row, ...]:
        """Calls of functions, by shapes and the module around, as they would have been
        in all steps; the one with the longest own time first."""
        rows = self.program.function_rows("call")
        functions = (row for row in rows if row.kind == "function")
        return tuple(sorted(functions, key=lambda row: -row.self_ns))

    @cached_property
    def turns(self) -> Turns:
        """How many steps the program made, or calls of its model."""
        strata = self.program.strata
        steps = strata.steps - strata.disturbed.steps
        if steps > 1:
            left_out = 0 if self.program.has_warm_up else strata.warm_up.steps
            evaluates = self.program.whole.step_times.evaluations
            noun = "step or evaluation call" if evaluates else "step"
            return Turns(steps - left_out, noun)
        cells = self.program.by_module.cells
        calls = sum(outermost(cells, name).calls for name in self.program.part_times_ns)
        return Turns(calls, "call of the model")

    def per_turn(self, count: int) -> float:
        """How often per step, or per call of the model (see `turns`), on average."""
        return count / max(self.turns.number, 1)

    def of_phases(self, *phases: Phase) -> Share:
        """The share of these phases in the time of all steps."""
        times = self.program.phase_times_ns
        part_ns = sum(times.get(phase, 0) for phase in phases)
        return Share(part_ns, self.program.by_module.wall_ns)

    def share(self, rows: Sequence[Row]) -> Share:
        """The share of the function calls in `rows`, with their backward: of the time
        on the device that they use, if that was measured."""
        profile = self.program.by_function
        if any(map(uses_device, rows)):
            part_ns = sum(map(device_time, rows))
            whole_ns = sum(t.device_self_ns for t in profile.cells.values())
            if part_ns:
                return Share(part_ns, whole_ns, profile.devices)
        return Share(sum(row.self_ns for row in rows), profile.wall_ns)

    def most(self, rows: Sequence[Row]) -> str:
        """Which call took most: ``the most in linear(2x3, 4x3) (1.200s)``."""
        row = max(rows, key=lambda row: self.share([row]).part_ns)
        if len(rows) == 1:
            return f"all of it in {row.name}"
        return f"the most in {row.name} ({self.share([row]).part_ns / 1e9:.3f}s)"


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


def has_backward(row: Row) -> bool:
    """Whether a backward pass went through calls of a function."""
    return any(row.phases[phase].self_ns for phase in BACKWARD_PHASES)


def modules_text(names: Sequence[str], class_names: Sequence[str]) -> str:
    """``Net.attention`` if it is one, or ``12 modules (Attention)``."""
    if len(names) == 1:
        return names[0]
    classes = ", ".join(sorted(set(class_names)))
    return f"{plural(len(names), 'module')} ({classes})"
