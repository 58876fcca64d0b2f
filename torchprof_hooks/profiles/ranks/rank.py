"""One rank: what of its file is compared with other ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Final

from torchprof_hooks.profiles.cells import CellKey, Infos
from torchprof_hooks.profiles.errors import ProfileFileError
from torchprof_hooks.profiles.files import profile_file
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.profiles.ranks.collectives import Collectives
from torchprof_hooks.profiles.ranks.provenance import Provenance
from torchprof_hooks.profiles.ranks.waits import Waits, waits_of
from torchprof_hooks.profiles.step_times import StepTimes

#: Phases in which a rank waits for others, or tells them something.
WAITING_PHASES: Final[tuple[Phase, ...]] = ("waiting", "communication")


@dataclass(frozen=True, slots=True)
class Rank:
    """What one rank did in a step, on average; times in nanoseconds.

    name: of its file.
    steps: how many training steps have ended.
    step_ns: all that was measured, divided by the steps (by one, if there were none).
    cells: own time by chain of calls and phase. They add up to `step_ns`.
    infos: descriptions of the names in the chains.
    collectives: what was exchanged in the steps that were looked into.
    waits: how long the rank waited for others, communication included.
    """

    name: str
    provenance: Provenance
    steps: int
    step_ns: float
    cells: Mapping[CellKey, float]
    infos: Infos
    waits: Waits
    collectives: Collectives = ()

    @property
    def number(self) -> int:
        """The number of the rank."""
        return self.provenance.rank

    @property
    def outermost(self) -> frozenset[str]:
        """The modules that are called from outside of all others."""
        firsts = {path[0] for path, _ in self.cells}
        return frozenset(n for n in firsts if self.infos[n].kind == "module")


def read_rank(path: Path) -> Rank:
    """The rank whose file this is. Steps after the first one are compared, if there are
    any, and the first one is known apart.

    Raises:
        ProfileFileError: the file is no profile, or does not say of which rank.
        OSError: it cannot be read.
    """
    found = profile_file.load_any(ProgramProfile, Profile, path)
    if isinstance(found, Profile):
        loop = loop_of(found)
        return rank_of(path.name, loop, loop.steps, found.steps)
    later, steps = found.step_times.later_steps, found.strata.training_steps
    loop = found.strata.estimate(of_functions=False, warm_up=not later)
    loop = replace(loop, provenance=found.provenance)
    return rank_of(path.name, loop, later, steps)


def loop_of(profile: Profile) -> Profile:
    """The steps of a profile after the first ones, or all if there are no others."""
    return profile.loop if profile.first.steps < profile.steps else profile


def rank_of(name: str, loop: Profile, count: int, steps: int) -> Rank:
    """The rank of a loop, with times per step.

    name: of its file.
    count: how many steps the loop has.
    steps: how many the run has.

    Raises:
        ProfileFileError: the profile is of no rank, or of several.
    """
    if not loop.provenance:
        raise ProfileFileError(f"{name} does not say which rank it is of")
    if len(loop.provenance) > 1:
        raise ProfileFileError(f"{name} is the sum of several")
    count = max(count, 1)
    cells = {key: totals.self_ns / count for key, totals in loop.cells.items()}
    return Rank(
        name,
        loop.provenance[0],
        steps,
        loop.wall_ns / count,
        cells,
        dict(loop.modules),
        _waits(loop.step_times, cells),
        loop.collectives,
    )


def _waits(times: StepTimes, cells: Mapping[CellKey, float]) -> Waits:
    """How long a rank waits in a step. Where it is not known step by step, only the
    mean is."""
    if times.waits:
        return waits_of(times.waits)
    waited_ns = sum(ns for (_, phase), ns in cells.items() if phase in WAITING_PHASES)
    return Waits(waited_ns, inf)
