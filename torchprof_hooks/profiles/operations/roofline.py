"""What bounds a function: how fast the device computes, or how fast its memory is.

The model is that of Williams, Waterman and Patterson, "Roofline: An Insightful Visual
Performance Model for Multicore Architectures" (2009).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

from torchprof_hooks.profiles.operations.traffic import NO_TRAFFIC

if TYPE_CHECKING:
    from torchprof_hooks.profiles.profile import Profile
    from torchprof_hooks.profiles.totals import Totals


class Roofline(NamedTuple):
    """How close functions come to the roof of a device, by own time and bytes, in the
    phases in which the bytes of all calls are known.

    traffic_calls: calls in these phases.
    read_bytes, written_bytes: see `Traffic`. Both are 0 if all calls return views.
    intensity: floating-point operations per byte; None where torch has no formula for
        the operations (of functions that do few operations per element).
    bound: "compute" if operations are the roof: the intensity is that of the device
        (its operations per second by the bytes of its memory per second) or above it.
        "memory" if bytes are, as they always are without products. "" if the device is
        not known, or nothing is moved.
    reached: the share of that roof that is reached: of the device's operations per
        second, or of the bytes of its memory per second. It is above 1 where inputs are
        in a cache. None where it is not known.
    """

    traffic_calls: int
    read_bytes: int
    written_bytes: int
    intensity: float | None
    bound: Literal["compute", "memory", ""]
    reached: float | None


def roofline_of(profile: Profile, phases: Iterable[Totals]) -> Roofline | None:
    """The roofline of a row in `phases`; None if bytes are known in none of them."""
    known = [t for t in phases if t.calls and t.traffic.traffic_calls == t.calls]
    if not known:
        return None
    traffic = NO_TRAFFIC
    for totals in known:
        traffic = traffic.plus(totals.traffic)
    moved, flops = traffic.moved_bytes, sum(totals.flops for totals in known)
    intensity = flops / moved if flops and moved else None
    found = Roofline(*traffic, intensity, "", None)
    bandwidth = profile.peak.bandwidth if profile.peak else None
    if profile.peak is None or bandwidth is None or not moved:
        return found
    on_device = bool(profile.devices)
    own_ns = sum(t.device_self_ns if on_device else t.self_ns for t in known)
    needed = flops / profile.peak.flops, moved / bandwidth.bytes_per_second
    return found._replace(
        bound="compute" if needed[0] >= needed[1] else "memory",
        reached=max(needed) / (own_ns / 1e9) if own_ns > 0 else None,
    )
