"""Sums of calls, and own sums of sites: without those of the calls inside."""

from __future__ import annotations

from collections.abc import Iterator

from torchprof_hooks.kernel.core import Cursor
from torchprof_hooks.kernel.reference.span_log import Int64s, Times
from torchprof_hooks.kernel.tree import Site


class SummedCalls(Cursor):
    """A cursor whose sums are read (see `Reading`)."""

    sites: list[Site]

    def times(self) -> Times:
        """What has been measured so far."""
        return Times(*self.read_times())

    def calls(self) -> Int64s:
        """How many calls have ended so far, by code."""
        self.log.fold()
        calls: Int64s = self.log.calls
        return calls

    def booked_ns(self, in_step: bool = False) -> Int64s:
        """Host time of calls that have ended, by code: so far, or since the last moment
        between two steps."""
        found: Int64s = self.log.of_step_ns if in_step else self.log.total_ns
        return found

    def own_ns(self, booked_ns: Int64s) -> list[int]:
        """Own time of each site, of calls that have ended."""
        sites = [*self.sites]
        return _own_times(sites, padded(booked_ns, len(sites)))

    def own(self, sums: Int64s) -> list[int]:
        """Own sums of each site, where interruptions are parts of calls."""
        sites = [*self.sites]
        return _without_inner(sites, padded(sums, len(sites)), interruptions_too=True)


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
    return _own_times(sites, durations)


def padded(sums: Int64s, size: int) -> list[int]:
    """One sum for each site: 0 where none was booked yet, as after an interrupt."""
    values: list[int] = sums[:size].tolist()
    return values + [0] * (size - len(values))


def _own_times(sites: list[Site], durations: list[int]) -> list[int]:
    durations = _at_least_inner(sites, durations)
    return _without_inner(sites, durations, interruptions_too=False)


def _interrupted_at(site: Site) -> Iterator[Site]:
    """The sites whose time includes what happens at `site`: itself and its callers, up
    to the first interruption. The time of an interruption is not in that of its
    callers."""
    yield site
    while not site.is_entry and site.caller is not site:
        site = site.caller
        yield site


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
    sites: list[Site], durations: list[int], interruptions_too: bool
) -> list[int]:
    """The sum of each site without those of the sites called from it.

    interruptions_too: whether those of interruptions are to be subtracted. Durations of
        the host are without them already.
    """
    own = list(durations)
    for site in sites:
        if site.caller is not site and (interruptions_too or not site.is_entry):
            own[site.caller.code] -= durations[site.code]
    return own
