"""The numbers that tips rest on."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from torchprof_hooks.documents.build.bottleneck import is_outside
from torchprof_hooks.documents.build.view import View
from torchprof_hooks.documents.words import percent, seconds
from torchprof_hooks.profiles.cells import outermost
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.program import Program
from torchprof_hooks.profiles.rows import Row


class Share(NamedTuple):
    """A part of the time of a run. whole: the name of the whole: "run" or "loop"."""

    part_ns: int
    whole_ns: int
    whole: str

    @property
    def fraction(self) -> float:
        """The part as a number from 0 to 1; 0.0 if the whole is 0."""
        return self.part_ns / self.whole_ns if self.whole_ns else 0.0

    @property
    def gain(self) -> str:
        """What leaving it out would gain at most: ``1.14x as fast without``."""
        return f"{1 / max(1 - self.fraction, 0.001):.2f}x as fast without"

    def __str__(self) -> str:
        """``12.0 % of the loop (1.200s)``."""
        return f"{percent(self.fraction)} of the {self.whole} ({seconds(self.part_ns)})"


class Turns(NamedTuple):
    """What a run repeats: steps; or, if no optimizer steps, calls of outermost modules.

    number: how many there were.
    noun: the name of one.
    """

    number: int
    noun: str


class Evidence:
    """The numbers of what a view shows (the loop, if that is known apart)."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.profile = view.shown
        self.memory = view.profile.memory  # of the whole run
        self.program = view.profile.program or Program()
        self._whole = "loop" if view.of_shown else "run"

    @property
    def is_loop(self) -> bool:
        """Whether time outside modules is that of the loop, not of imports."""
        return bool(self.view.of_shown) or self.view.profile.program is None

    @cached_property
    def calls(self) -> tuple[Row, ...]:
        """The calls of functions, by shapes and by the module around."""
        rows = self.profile.rows("call") if self.profile.has_functions else ()
        return tuple(row for row in rows if row.kind == "function")

    @cached_property
    def turns(self) -> Turns:
        """How many steps and evaluation calls, or calls of the model, there were."""
        profile, times = self.profile, self.profile.step_times
        steps, evaluations = profile.steps, times.evaluations
        if steps + evaluations > 1:
            noun = "step or evaluation call" if evaluations else "step"
            return Turns(steps + evaluations, noun)
        outer = {path[0] for path, _ in profile.cells}
        calls = sum(outermost(profile.cells, name).calls for name in outer)
        return Turns(calls, "call of the model")

    def per_turn(self, count: int) -> float:
        """The mean of a count per step, or per call of the model (see `turns`)."""
        return count / max(self.turns.number, 1)

    def share(self, part_ns: int) -> Share:
        """This time as a share of the profile's."""
        return Share(part_ns, self.profile.wall_ns, self._whole)

    @cached_property
    def outside(self) -> Share:
        """The program itself, with the backward of what it calls outside of modules."""
        rows = self.profile.rows()
        return self.share(sum(row.self_ns for row in rows if is_outside(row)))

    def of_phases(self, *phases: Phase) -> Share:
        """The share of these phases."""
        times = self.profile.phase_times_ns()
        return self.share(sum(times[phase] for phase in phases))
