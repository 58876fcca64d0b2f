"""What measuring itself costs, measured on this machine, and in whose time that is.

A hook's work is done in somebody's time: what comes before the first time stamp of a
call and after the last one is in the time of its caller, and what lies between them in
its own. So a call with many cheap calls inside looks dearer than it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from torchprof_hooks.capture.overhead.calibration import CallCost, Costs, calibration_of
from torchprof_hooks.capture.overhead.trial_runs import mean_hook_ns
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.tracking.meters.meters import counts_tensors
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.profiles.names import CALLED_PHASES, Phase

#: Time from call to call up to which caches stay warm, and from which on they are cold:
#: so it was with chains of small modules, and with language models.
_NO_WORK_NS: Final = 3000
_COLD_WORK_NS: Final = 20_000
#: Hooks that take more than so many times as long as in the cold trial are held up by
#: something that does not hold up all else.
_MOST_SLOWER: Final = 2.0

#: Phases in which calls are told to hooks. A step of an optimizer, or a batch, costs
#: about as much as the call of a module.
_HOOKED_PHASES: Final[tuple[Phase, ...]] = (
    *CALLED_PHASES,
    "optimizer",
    "data",
    "communication",
)


def overhead_of_sites(
    tracker: Tracker,
    costs_like: Tracker,
    sites: Sequence[Site],
    calls: Sequence[int],
    own_ns: Sequence[int],
) -> list[int]:
    """How much of the own time of each site measuring has taken, in nanoseconds: counts
    of what hooks did, times what that costs; and the readings of meters, which are
    timed.

    Planning backward passes is not in it: that is timed, too, and booked on a site of
    its own.

    tracker: the one that has measured these sites.
    costs_like: the tracker for whose kind costs are calibrated.
    calls, own_ns: how many calls of each site have ended, and their own time.
    """
    overhead_ns = [0.0] * len(sites)
    if not any(calls):
        return [0] * len(sites)
    warm, cold, passed_over_ns = calibration_of(costs_like)
    by_hooks = None
    if counts_tensors(tracker) == counts_tensors(costs_like):  # hooks read them
        by_hooks = _place_by_hooks(mean_hook_ns(tracker), warm.hook_ns, cold.hook_ns)
    spacings_ns = _between_calls(sites, calls, own_ns)
    for site, count, spacing_ns in zip(sites, calls, spacings_ns, strict=True):
        place = _place_by_work(spacing_ns - sum(_of_its_kind(site, warm)))
        if by_hooks is not None and by_hooks.share <= place.share:
            place = by_hooks
        is_hooked = site.phase in _HOOKED_PHASES and not site.is_recomputation
        if count and is_hooked:
            cost = _cost_of_call(site, warm, cold, place)
            # The sum of own and caller's cost is better known than either: which of
            # them pays for cold caches varies with the work around.
            paid_ns = min(count * cost.own_ns, max(own_ns[site.code], 0))
            overhead_ns[site.code] += paid_ns
            overhead_ns[site.caller.code] += count * sum(cost) - paid_ns
        boundary_ns = place.cost_ns(warm.boundary_ns, cold.boundary_ns)
        node_ns = place.cost_ns(warm.node_ns, cold.node_ns)
        overhead_ns[site.code] += site.arrivals * boundary_ns + site.heard * node_ns
        overhead_ns[site.code] += site.passed_over * passed_over_ns
        overhead_ns[site.code] += site.reading_ns
    return list(map(round, overhead_ns))


class _Place(NamedTuple):
    """What costs are in some place of a program, compared with the two trials.

    share: where they lie between those of the warm (0) and of the cold trial (1).
    slower: factor by which they are outside of that range: the machine, or what is
        around calls, is slower than it was in the trials, or faster.
    """

    share: float
    slower: float = 1.0

    def cost_ns(self, warm_ns: float, cold_ns: float) -> float:
        """Cost, here, of something that costs so much in the trials."""
        return self.slower * (warm_ns + self.share * (cold_ns - warm_ns))


def _place_by_hooks(
    hook_ns: float, warm_hook_ns: float, cold_hook_ns: float
) -> _Place | None:
    """The place, by how long hooks took there. None if that does not tell."""
    if not (hook_ns > 0 and 0 < warm_hook_ns < cold_hook_ns):
        return None
    if hook_ns < warm_hook_ns:
        return _Place(0.0, hook_ns / warm_hook_ns)
    if hook_ns > cold_hook_ns:
        return _Place(1.0, min(hook_ns / cold_hook_ns, _MOST_SLOWER))
    return _Place((hook_ns - warm_hook_ns) / (cold_hook_ns - warm_hook_ns))


def _between_calls(
    sites: Sequence[Site], calls: Sequence[int], own_ns: Sequence[int]
) -> list[float]:
    """For each site, how much time there is from call to call around it, on average:
    that of the call in which these calls are, divided among them."""
    whole_ns, inside = list(own_ns), [0] * len(sites)
    for site in reversed(sites):  # callers come before the called
        if site.caller is not site:
            whole_ns[site.caller.code] += whole_ns[site.code]
            inside[site.caller.code] += calls[site.code]
    return [
        whole_ns[site.caller.code] / max(inside[site.caller.code], 1) for site in sites
    ]


def _place_by_work(work_ns: float) -> _Place:
    """The place, by how much work there is from call to call."""
    share = (work_ns - _NO_WORK_NS) / (_COLD_WORK_NS - _NO_WORK_NS)
    return _Place(min(max(share, 0.0), 1.0))


def _cost_of_call(site: Site, warm: Costs, cold: Costs, place: _Place) -> CallCost:
    low, high = _of_its_kind(site, warm), _of_its_kind(site, cold)
    return CallCost(
        place.cost_ns(low.own_ns, high.own_ns),
        place.cost_ns(low.caller_ns, high.caller_ns),
    )


def _of_its_kind(site: Site, costs: Costs) -> CallCost:
    if site.function is None:
        return costs.call
    return costs.python_function if site.is_python else costs.function


def device_overhead(
    device_ns: Sequence[int],
    waits: float,
    sites: Sequence[Site],
    calls: Sequence[int],
    overhead_ns: Sequence[int],
) -> list[int]:
    """How much of each site's own time on the device's clock is a cost of measuring, in
    nanoseconds.

    A device that is behind the host does not notice what the host does meanwhile. One
    that waits for the host waits longer, by all that measuring takes.

    device_ns: own times of the sites on the device's clock.
    waits: the share of the stamps at which the device waited.
    overhead_ns: how much of the host's time measuring took, at each site.
    """
    if not waits:
        return [0] * len(device_ns)
    taken_ns = _until_stamps(sites, calls, overhead_ns)
    return [
        min(round(waits * max(cost_ns, 0.0)), max(own_ns, 0))
        for own_ns, cost_ns in zip(device_ns, taken_ns, strict=True)
    ]


def _until_stamps(
    sites: Sequence[Site], calls: Sequence[int], overhead_ns: Sequence[int]
) -> list[float]:
    """The costs of the host, divided as by the device's clock. On the host, taking the
    two stamps of a call is the caller's time. On the device, a call ends when its
    second stamp has been taken: half of that time is the call's."""
    stamping_ns = sum(site.reading_ns for site in sites) / max(sum(calls), 1) / 2
    costs: list[float] = list(overhead_ns)
    for site, count in zip(sites, calls, strict=True):
        if site.caller is not site:
            costs[site.code] += count * stamping_ns
            costs[site.caller.code] -= count * stamping_ns
    return costs
