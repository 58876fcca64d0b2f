"""One rank: what of its file is compared with other ranks; and how long it waits for
these in a step, and how well that is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from pathlib import Path
from typing import Final, NamedTuple

from torchprof_hooks.profiles.cells import CellKey, Infos
from torchprof_hooks.profiles.errors import ProfileFileError
from torchprof_hooks.profiles.files import profile_file
from torchprof_hooks.profiles.files.collector import without_collections
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.profiles.ranks.collectives import Collectives
from torchprof_hooks.profiles.ranks.provenance import Provenance
from torchprof_hooks.profiles.step_times import Bucket, StepTimes

#: This share of the steps is left out, those in which a rank waits longest: a busy
#: machine holds up one rank or another for long, now and then.
_LEFT_OUT: Final = 0.2
#: With fewer steps than this, none is left out.
_FEW: Final = 8


class Waits(NamedTuple):
    """Waiting of a rank in a step, with communication; nanoseconds.

    mean_ns: of most steps (see `waits_of`).
    error_ns: the standard error of the mean: how far off it may be by chance.
    """

    mean_ns: float
    error_ns: float


def waits_of(buckets: Sequence[Bucket]) -> Waits:
    """The trimmed mean of these steps, and its standard error.

    The error is computed as if the steps left out were as long as the longest one kept
    (K. K. Yuen, "The two-sample trimmed t for unequal population variances", 1974).
    From few steps, it is not known well how much they differ: the variance of Student's
    t with n - 1 degrees of freedom is (n - 1) / (n - 3).
    """
    steps = sum(bucket.steps for bucket in buckets)
    kept = steps - (int(_LEFT_OUT * steps) if steps >= _FEW else 0)
    shortest = _shortest(buckets, kept)
    mean_ns = sum(ns * count for ns, count in shortest) / kept
    if kept <= 3:
        return Waits(mean_ns, inf)
    moved = [*shortest, (shortest[-1][0], steps - kept)]
    center_ns = sum(ns * count for ns, count in moved) / steps
    squares = sum((ns - center_ns) ** 2 * count for ns, count in moved)
    return Waits(mean_ns, sqrt(squares / (kept * (kept - 3))))


def _shortest(buckets: Sequence[Bucket], count: int) -> list[tuple[float, int]]:
    """The `count` shortest steps: durations, and how many steps have each."""
    found = []
    for _, steps, total_ns in buckets:
        taken = min(steps, count)
        if taken:
            found.append((total_ns / steps, taken))
        count -= taken
    return found


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


#: Fewer files are read sooner here than other processes start.
_MANY: Final = 64
#: Files that a process reads at a time. What they have in common is sent once.
_PART: Final = 32


def read_all(paths: Sequence[Path], processes: int) -> list[Rank | str]:
    """For each file its rank, or why it has none.

    processes: how many read at once, if there are many files. They are forked: give
        more than 1 only in a program with one thread. Where forking is not possible,
        this process reads.
    """
    found = None
    if processes > 1 and len(paths) >= _MANY:
        found = _read_in_forks(paths, processes)
    if found is not None:
        return found
    with without_collections():
        return list(map(_read, paths))


def _read_in_forks(paths: Sequence[Path], processes: int) -> list[Rank | str] | None:
    """What `read_all` returns, read by forks; None if these are impossible, or die."""
    # Not at the top: rank 0 reads while its interpreter ends, when this import fails.
    from concurrent.futures import process
    from multiprocessing import get_context

    try:
        with process.ProcessPoolExecutor(processes, get_context("fork")) as pool:
            return list(pool.map(_read, paths, chunksize=_PART))
    except (ImportError, NotImplementedError, OSError, process.BrokenProcessPool):
        return None


def _read(path: Path) -> Rank | str:
    if path.exists() and not path.is_file():  # nobody may ever write to a pipe
        return f"{path.name} is no file"
    try:
        return read_rank(path)
    except (OSError, ProfileFileError) as error:
        return str(error).replace(f"{path.parent}/", "")
