"""One rank: what its file says that is compared with others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    infos: what the names in the chains are.
    collectives: what was exchanged in the steps that were looked into.
    waits: how long it waited, with communication.
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
        """Its rank."""
        return self.provenance.rank

    @property
    def outermost(self) -> frozenset[str]:
        """The modules that are called from outside of all others."""
        firsts = {path[0] for path, _ in self.cells}
        return frozenset(n for n in firsts if self.infos[n].kind == "module")


def read_rank(path: Path) -> Rank:
    """The rank whose file this is. Of a whole program, steps after the first one are
    compared, if there are any.

    Raises:
        ProfileFileError: it is no profile, or does not say of which rank.
        OSError: it cannot be read.
    """
    found = profile_file.load_most(ProgramProfile, Profile, path)
    if isinstance(found, Profile):
        return rank_of(path.name, found, found, found.steps, found.steps)
    later = found.step_times.later_steps
    loop = found.strata.estimate(of_functions=False, warm_up=not later)
    return rank_of(path.name, found, loop, later, found.strata.steps)


def rank_of(
    name: str,
    found: Profile | ProgramProfile,
    loop: Profile,
    later: int,
    steps: int,
) -> Rank:
    """A rank.

    found: what its file has.
    loop, later: what is compared, and how many steps that has.
    steps: all of them.

    Raises:
        ProfileFileError: it is of no rank, or of several.
    """
    if not found.provenance:
        raise ProfileFileError(f"{name} does not say which rank it is of")
    if len(found.provenance) > 1:
        raise ProfileFileError(f"{name} is the sum of several")
    count = max(later, 1)
    cells = {key: totals.self_ns / count for key, totals in loop.cells.items()}
    return Rank(
        name,
        found.provenance[0],
        steps,
        loop.wall_ns / count,
        cells,
        loop.modules,
        _waits(loop.step_times, cells),
        loop.collectives,
    )


def _waits(times: StepTimes, cells: Mapping[CellKey, float]) -> Waits:
    """Waiting outside of steps is known as a whole alone."""
    if times.waits:
        return waits_of(times.waits)
    waited_ns = sum(ns for (_, phase), ns in cells.items() if phase in WAITING_PHASES)
    return Waits(waited_ns, inf)
