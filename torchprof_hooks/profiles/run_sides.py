"""The runs of both sides of a comparison: whether these are runs of one program, and
whether they took turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import Grouping, Kind

#: Profiles are of one program if rows of both have this share of the time of either.
_RELATED: Final = 0.5
#: Kinds of rows that tell whether they are.
_CALLED: Final[tuple[Kind, ...]] = ("module", "function")


def checked_runs(name: str, runs: object) -> list[ProfileData]:
    """The runs of a side, if these are profiles of runs of their own."""
    found = [runs] if isinstance(runs, ProfileData) else runs
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise TypeError(f"{name} must be a Profile, or several, not {runs!r}")
    for run in found:
        if not isinstance(run, ProfileData):
            raise TypeError(f"{name} must be a Profile, or several, not {run!r}")
    if not found:
        raise ValueError(f"{name} has no profile: give one for each run")
    processes = [each for run in found for each in run.provenance if each.started_ns]
    if len({(p.host, p.pid, p.started_ns) for p in processes}) < len(processes):
        raise ValueError(f"{name} has a run twice: give each run once")
    if len(found) > 1 and len({each.rank for each in processes}) > 1:
        raise ValueError(
            f"{name} has several ranks, which are no runs of their own: merge the "
            "ranks of each run, or compare one rank"
        )
    return [*found]


def check_related(
    olds: Sequence[ProfileData], news: Sequence[ProfileData], by: Grouping
) -> None:
    """Refuse profiles whose rows have little in common."""
    times: list[dict[tuple[str, str], int]] = []
    for name, runs in (("old", olds), ("new", news)):
        found: dict[tuple[str, str], int] = {}
        for row in (row for run in runs for row in run.rows(by)):
            if row.kind in _CALLED:
                key = row.name, row.class_name
                found[key] = found.get(key, 0) + max(row.self_ns, 1)
        if not found and by == "function":
            raise ValueError(
                f"functions were not measured in {name}: compare modules, or run "
                "compare --run with --by function"
            )
        if not found:
            raise ValueError(f"no module and no function was called in {name}")
        times.append(found)
    one, other = times
    shares = [
        sum(found[key] for key in one.keys() & other.keys()) / sum(found.values())
        for found in times
    ]
    if max(shares) < _RELATED:
        raise ValueError(
            "these are not profiles of one program: only "
            f"{len(one.keys() & other.keys())} of {len(one)} and {len(other)} rows are "
            f"in both, with {shares[0]:.0%} of the time of old, {shares[1]:.0%} of "
            "that of new. If modules were renamed, compare by class"
        )


def pairs_of(
    old: Sequence[ProfileData], new: Sequence[ProfileData]
) -> list[tuple[int, int]]:
    """Pairs of an old and a new run, one after the other, if runs took turns; else
    nothing."""
    began = [
        (min((each.started_ns for each in run.provenance), default=0), side, place)
        for side, runs in enumerate((old, new))
        for place, run in enumerate(runs)
    ]
    began.sort()
    if len(old) != len(new) or len(old) < 2 or not began[0][0]:
        return []
    pairs = [sorted(pair) for pair in zip(began[::2], began[1::2], strict=True)]
    by_side = [sorted((side, place) for _, side, place in pair) for pair in pairs]
    if any([side for side, _ in pair] != [0, 1] for pair in by_side):
        return []
    return [(one, other) for (_, one), (_, other) in by_side]
