"""How much of a device's time is that of measuring: where the device has nothing to do,
its clock goes on while the host measures."""

from __future__ import annotations

from collections.abc import Sequence

from torchprof_hooks.capture.record.site import Site


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
