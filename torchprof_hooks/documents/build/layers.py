"""Adds up layers of a kind, and finds which of them are hot.

If a device is busy, its clock counts for that, since the host waits for it in whatever
call it happens to be."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import sqrt
from typing import Final, NamedTuple

from torchprof_hooks.documents.document import Tone
from torchprof_hooks.documents.words import HEATS, LEAST_ASKED, MOSTLY
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.kinds import LayerKind, kind_of
from torchprof_hooks.profiles.names import MODULE_PHASES, Phase
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.totals import Totals, summed_phases

#: From so many calls on, one that was interrupted stands out.
_FEWEST_CALLS: Final = 3
#: More than so many standard errors are no chance.
_ERRORS: Final = 3

_TONES: Final[Sequence[Tone]] = ("heat0", "heat1", "heat2", "heat3", "heat4", "heat5")


def own_ns(found: Row | Totals, device: str) -> int:
    """Own time by the device's clock; if `device` is "", by the host's."""
    return found.device_self_ns if device else found.self_ns


def variance_ns2(totals: Totals, part: float = 1.0) -> float:
    """The square of the standard error of the time of calls, from the spread of their
    durations; 0.0 if they are too few, or all alike.

    part: which part of each call counts.
    """
    return totals.calls * (totals.std_ns * part) ** 2 if totals.calls > 1 else 0.0


def are_enough(totals: Iterable[Totals]) -> bool:
    """Whether there are enough calls to tell chance from the rule."""
    return any(each.calls >= _FEWEST_CALLS for each in totals)


def noise_ns(totals: Iterable[Totals], device: str) -> float:
    """How far the summed times of calls may be off by chance (work of other programs,
    interrupts): three standard errors. 0.0 by a device's clock, as the spread of calls
    is known by the host's only."""
    if device:
        return 0.0
    # All of a call, also if less of it counts: chance may have struck there.
    return _ERRORS * sqrt(sum(map(variance_ns2, totals)))


class Hottest(NamedTuple):
    """The layers of the kind with the most own time, or the one of them that has most
    of it.

    device: the device whose clock measured that; "" for the host's.
    """

    kind: LayerKind
    rows: Sequence[Row]
    own_ns: int
    device: str = ""

    @property
    def name(self) -> str:
        """The name of the module, if there is only one, or of the kind."""
        return self.rows[0].name if len(self.rows) == 1 else self.kind.name

    def own_times_ns(self) -> dict[Phase, int]:
        """Their own time by phase, without phases in which they have none."""
        sums = summed_phases(row.phases for row in self.rows)
        times = {phase: own_ns(sums[phase], self.device) for phase in MODULE_PHASES}
        return {phase: phase_ns for phase, phase_ns in times.items() if phase_ns}


def hottest(
    kinds: Mapping[LayerKind, Sequence[Row]], device: str, apart: Collection[str]
) -> Hottest | None:
    """The layers of the kind with the most own time; None if there are none. If at
    least half of that is of one layer that departs from the others, only that one.

    device: the device whose clock counts (see `busy_device`); "" for the host's.
    apart: the names of layers that depart from their kind.
    """
    found = [
        Hottest(kind, alike, sum(own_ns(row, device) for row in alike), device)
        for kind, alike in kinds.items()
    ]
    most = max(found, key=lambda each: each.own_ns, default=None)
    if most is not None:
        for row in most.rows:
            if row.name in apart and 2 * own_ns(row, device) >= most.own_ns:
                return Hottest(kind_of(row, apart), [row], own_ns(row, device), device)
    return most


class Shares(NamedTuple):
    """The times of phases, by the clock that counts.

    device: the device whose clock that is (see `busy_device`); "" for the host's.
    times_ns: the time of each phase.
    whole_ns: the time that shares are a part of.
    """

    device: str
    times_ns: Counter[Phase]
    whole_ns: int


def shares_of(profile: ProfileData) -> Shares:
    """The times of phases by a busy device, if there is one; else, by the host."""
    device = busy_device(profile)
    times = profile.phase_times_ns(on_device=bool(device))
    return Shares(device, times, times.total() if device else profile.wall_ns)


def busy_device(profile: ProfileData) -> str:
    """The device that had work at most begins and ends of calls; "" if there is none,
    or if that is not known."""
    asked, waits = profile.device_asked, profile.device_waits
    is_known = asked >= LEAST_ASKED and len(profile.devices) == 1
    return profile.devices[0] if is_known and waits < asked / 2 else ""


def waits_for_the_host(profile: ProfileData) -> bool:
    """Whether the device mostly had nothing to do at begins and ends of calls."""
    asked, waits = profile.device_asked, profile.device_waits
    return asked >= LEAST_ASKED and waits >= MOSTLY * asked


def heat(share: float) -> Tone:
    """The heat of layers whose own time is this share of all time."""
    return _TONES[bisect(HEATS, share)]


def heats(rows: Sequence[Row], device: str, whole_ns: float) -> list[Tone]:
    """The heat of each row, which is that of all of its kind. whole_ns: all time."""
    kinds, times = [kind_of(row) for row in rows], Counter[LayerKind]()
    for kind, row in zip(kinds, rows, strict=True):
        times[kind] += own_ns(row, device)
    tones = {kind: heat(ns / max(whole_ns, 1)) for kind, ns in times.items()}
    return [tones[kind] for kind in kinds]
