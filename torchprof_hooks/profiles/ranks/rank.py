"""One rank: what of its file is compared with other ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

from torchprof_hooks.profiles.cells import CellKey, Infos
from torchprof_hooks.profiles.errors import ProfileFileError
from torchprof_hooks.profiles.files import profile_file
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.profiles.ranks.collectives import Collectives
from torchprof_hooks.profiles.ranks.provenance import Processes, Provenance
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


class Loop(NamedTuple):
    """What is compared of a rank: all its steps, or those after the first one.

    measured: what is not estimated: collectives, and the times of steps.
    own_ns: own times of cells.
    """

    measured: Profile
    infos: Infos
    own_ns: Mapping[CellKey, int]


def read_rank(path: Path) -> Rank:
    """The rank whose file this is. Steps after the first one are compared, if there are
    any, and the first one is known apart.

    Raises:
        ProfileFileError: the file is no profile, or does not say of which rank.
        OSError: it cannot be read.
    """
    found = profile_file.load_any(ProgramProfile, Profile, path)
    if isinstance(found, Profile):
        count = found.steps - found.first.steps or found.steps
        return rank_of(path.name, found.provenance, loop_of(found), count, found.steps)
    later, steps = found.step_times.later_steps, found.strata.training_steps
    if not later:
        loop = loop_of(found.strata.estimate(of_functions=False))
        return rank_of(path.name, found.provenance, loop, 0, steps)
    division = found.strata.division(of_functions=False)
    loop = Loop(division.measured, division.modules, division.own_ns)
    return rank_of(path.name, found.provenance, loop, later, steps)


def loop_of(profile: Profile) -> Loop:
    """The steps of a profile after the first ones, or all if there are no others."""
    own_ns = {key: totals.self_ns for key, totals in profile.cells.items()}
    if profile.first.steps < profile.steps:
        for key, totals in profile.first.cells.items():
            own_ns[key] -= totals.self_ns
    return Loop(profile, dict(profile.modules), own_ns)


def rank_of(
    name: str, provenance: Processes, loop: Loop, count: int, steps: int | None = None
) -> Rank:
    """The rank of a loop, with times per step.

    name: of its file.
    count: how many steps the loop has.
    steps: how many the run has, if it has more than the loop.

    Raises:
        ProfileFileError: the profile is of no rank, or of several.
    """
    if not provenance:
        raise ProfileFileError(f"{name} does not say which rank it is of")
    if len(provenance) > 1:
        raise ProfileFileError(f"{name} is the sum of several")
    count, steps = max(count, 1), count if steps is None else steps
    cells = {key: own_ns / count for key, own_ns in loop.own_ns.items()}
    return Rank(
        name,
        provenance[0],
        steps,
        sum(loop.own_ns.values()) / count,
        cells,
        loop.infos,
        _waits(loop.measured.step_times, cells),
        loop.measured.collectives,
    )


def _waits(times: StepTimes, cells: Mapping[CellKey, float]) -> Waits:
    """How long a rank waits in a step. Where it is not known step by step, only the
    mean is."""
    if times.waits:
        return waits_of(times.waits)
    waited_ns = sum(ns for (_, phase), ns in cells.items() if phase in WAITING_PHASES)
    return Waits(waited_ns, inf)
