"""What measuring itself costs, measured on this machine, and whose time that is in.

A hook's work is done in somebody's time: what comes before the first time stamp of a
call and after the last one is in the time of its caller, and what lies between them in
its own. So a call with many cheap calls inside looks dearer than it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torchprof_hooks.capture.overhead.calibration import CallCost, Costs, calibration_of
from torchprof_hooks.capture.overhead.trial_runs import mean_hook_ns
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.profiles.names import CALLED_PHASES, Phase

#: Own time of a call up to which caches stay warm, and from which on they are cold: so
#: it was with chains of small modules, and with language models.
_NO_WORK_NS: Final = 2000
_COLD_WORK_NS: Final = 20_000

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

    tracker: what has measured them.
    costs_like: what it costs is seen on one like that.
    calls, own_ns: how many calls of each site have ended, and their own time.
    """
    overhead_ns = [0.0] * len(sites)
    if not any(calls):
        return [0] * len(sites)
    warm, cold, passed_over_ns = calibration_of(costs_like)
    of_all = None
    if (tracker.tensors is None) == (costs_like.tensors is None):  # hooks read them
        of_all = _share_by_hooks(mean_hook_ns(tracker), warm.hook_ns, cold.hook_ns)
    for site, count in zip(sites, calls, strict=True):
        share = of_all
        if share is None:
            share = _share_by_work(own_ns[site.code] / max(count, 1))
        is_hooked = site.phase in _HOOKED_PHASES and not site.is_recomputation
        if count and is_hooked:
            cost = _cost_of_call(site, warm, cold, share)
            # The sum of the two is better known than either: it varies with the work
            # around which of them pays for cold caches.
            paid_ns = min(count * cost.own_ns, max(own_ns[site.code], 0))
            overhead_ns[site.code] += paid_ns
            overhead_ns[site.caller.code] += count * sum(cost) - paid_ns
        boundary_ns = _mean(warm.boundary_ns, cold.boundary_ns, share)
        node_ns = _mean(warm.node_ns, cold.node_ns, share)
        overhead_ns[site.code] += site.arrivals * boundary_ns + site.heard * node_ns
        overhead_ns[site.code] += site.passed_over * passed_over_ns
        overhead_ns[site.code] += site.reading_ns
    return list(map(round, overhead_ns))


def _share_by_hooks(
    hook_ns: float, warm_hook_ns: float, cold_hook_ns: float
) -> float | None:
    """How far costs are between warm and cold where hooks took so long. None if that
    does not tell."""
    if not (hook_ns > 0 and 0 < warm_hook_ns < cold_hook_ns):
        return None
    share = (hook_ns - warm_hook_ns) / (cold_hook_ns - warm_hook_ns)
    return min(max(share, 0.0), 1.0)


def _share_by_work(work_ns: float) -> float:
    """The same where a call does so much work."""
    return min(max((work_ns - _NO_WORK_NS) / (_COLD_WORK_NS - _NO_WORK_NS), 0.0), 1.0)


def _mean(warm_ns: float, cold_ns: float, share: float) -> float:
    return warm_ns + share * (cold_ns - warm_ns)


def _cost_of_call(site: Site, warm: Costs, cold: Costs, share: float) -> CallCost:
    low, high = _of_its_kind(site, warm), _of_its_kind(site, cold)
    return CallCost(
        _mean(low.own_ns, high.own_ns, share),
        _mean(low.caller_ns, high.caller_ns, share),
    )


def _of_its_kind(site: Site, costs: Costs) -> CallCost:
    if site.function is None:
        return costs.call
    return costs.python_function if site.is_python else costs.function
