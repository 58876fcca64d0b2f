"""Own time and own memory of each site, on the host and on a device: without the calls
inside."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchprof_hooks.instruments.devices import DeviceMeter
from torchprof_hooks.instruments.memory.meter import meters_of
from torchprof_hooks.kernel.reference.span_log import Int64s, MemorySums, Times
from torchprof_hooks.kernel.tracker import Tracker
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.profiles.memory import NO_MEMORY, MemoryTotals


def own_host_ns(sites: list[Site], times: Times, late_ns: int = 0) -> list[int]:
    """Own host time of each site: of calls that have ended, and of open ones so far.

    late_ns: how long the open ones have been measured for too long.
    """
    durations = padded(times.total_ns, len(sites))
    for code, so_far_ns in times.open_ns.reshape(-1, 2).tolist():
        durations[code] += so_far_ns
    if len(times.open_ns):
        for site in _interrupted_at(sites[int(times.open_ns[0])]):
            durations[site.code] -= late_ns
    durations = _at_least_inner(sites, durations)
    return _without_inner(sites, durations, entries_too=False)


def _interrupted_at(site: Site) -> Iterator[Site]:
    """The sites whose time includes what happens at `site`: itself and its callers, up
    to the first entry. The time of an entry is not in that of its callers."""
    yield site
    while not site.is_entry and site.caller is not site:
        site = site.caller
        yield site


def own_device_ns(tracker: Tracker, calls: list[int]) -> list[int]:
    """Own time of each site on the device. calls: how many have ended, by code."""
    for meter in meters_of(tracker, DeviceMeter):
        return meter.own_ns(np.array(calls))
    return [0] * len(calls)


def own_device_ns_of_first_step(tracker: Tracker, sites: list[Site]) -> list[int]:
    """The same of the first step alone."""
    for meter in meters_of(tracker, DeviceMeter):
        return meter.own_ns_of_first_step(len(sites))
    return [0] * len(sites)


def own_memory(
    sums: MemorySums | None, tracker: Tracker, sites: list[Site]
) -> list[MemoryTotals]:
    """Own memory of each site, read where calls begin and end; none if not measured."""
    if sums is None:
        return [NO_MEMORY] * len(sites)
    used, acquired, retained = (
        _without_inner(sites, padded(each, len(sites)), entries_too=True)
        for each in sums[:3]
    )
    own = [*map(MemoryTotals, used, acquired, retained, padded(sums.peak, len(sites)))]
    own[tracker.outside.code] = NO_MEMORY  # not read there
    return own


def padded(sums: Int64s, size: int) -> list[int]:
    """One sum for each site: 0 where none was booked yet, as after an interrupt."""
    values: list[int] = sums[:size].tolist()
    return values + [0] * (size - len(values))


def _at_least_inner(sites: list[Site], durations: list[int]) -> list[int]:
    """Durations, each raised to the sum of the calls inside, if it is below that: the
    inner calls were booked, and an interrupt came before the outer one was."""
    found, inner = list(durations), [0] * len(sites)
    for site in reversed(sites):  # callers come first
        found[site.code] = max(found[site.code], inner[site.code])
        if not site.is_entry:
            inner[site.caller.code] += found[site.code]
    return found


def _without_inner(
    sites: list[Site], durations: list[int], entries_too: bool
) -> list[int]:
    """The sum of each site without those of the sites called from it.

    entries_too: whether those of entries are to be subtracted. Durations of the host
        are without them already.
    """
    own = list(durations)
    for site in sites:
        if site.caller is not site and (entries_too or not site.is_entry):
            own[site.caller.code] -= durations[site.code]
    return own
