"""How much of what a device can do is used: MFU and HFU; and what bounds a function,
how fast the device computes or how fast its memory is.

The terms of the first are those of Chowdhery et al., "PaLM: Scaling Language Modeling
with Pathways" (2022), appendix B: model FLOPs utilisation leaves out what is computed
again, hardware FLOPs utilisation has it. The model of the second is that of Williams,
Waterman and Patterson, "Roofline: An Insightful Visual Performance Model for Multicore
Architectures" (2009).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

from torchprof_hooks.profiles.cells import overhead_ns
from torchprof_hooks.profiles.files.fields import OPTIONAL, BigCount
from torchprof_hooks.profiles.operations.traffic import NO_TRAFFIC

if TYPE_CHECKING:
    from torchprof_hooks.profiles.modules import ModuleInfo
    from torchprof_hooks.profiles.profile import Profile
    from torchprof_hooks.profiles.rows import Row
    from torchprof_hooks.profiles.totals import Totals

#: Bytes of a number. Where the inputs of a product differ in type, it is computed in
#: the narrowest.
_WIDTHS: Final = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """How fast the memory of a device is.

    bytes_per_second: read and written, taken together.
    source: where the number comes from.
    """

    bytes_per_second: BigCount
    source: str


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that a device can do.

    flops: floating-point operations per second, without sparsity.
    source: where the number comes from.
    bandwidth: how fast its memory is, None if that is not known.
    """

    flops: BigCount
    source: str
    bandwidth: Annotated[Bandwidth | None, OPTIONAL] = None


class Utilisation(NamedTuple):
    """Shares of what the device could have done in the same time.

    mfu: of all operations but those of recompute.
    hfu: of all operations.
    """

    mfu: float
    hfu: float


class Rated:
    """Has rates: a base of `Profile`."""

    __slots__ = ()

    @property
    def utilisation(self) -> Utilisation | None:
        """Which share of what the device could have done was done, in all of the
        measured time but that of measuring itself: MFU without, and HFU with what was
        computed again. None where no operations were counted, or no peak is known."""
        return of_profile(self._reported_profile())

    def roofline(self, row: Row) -> Roofline | None:
        """What bounds a row of functions or of call sites: compute or memory; None if
        it is not known how many bytes they move. The speed of the CPU is measured only
        for the reports of a profiler: elsewhere, its functions have no bound.

        Args:
            row: of ``rows(by="function")`` or ``rows(by="call")``.

        Example:
            >>> for row in profile.rows(by="function"):
            ...     print(row.name, profile.roofline(row))
            linear Roofline(traffic_calls=20, read_bytes=5644800, ...)
        """
        return roofline_of(self._reported_profile(), row.phases.values())

    @property
    def items_per_second(self) -> float:
        """Items in a step by the mean time of a step (without the first of a run, if
        there are others); 0.0 where either is not known. Merged runs do not add up: it
        is the rate of one, on average."""
        profile = self._reported_profile()
        times = profile.step_times
        step_ns = times.mean_ns if times.later_steps else times.first_mean_ns
        if not profile.steps or step_ns <= 0:
            return 0.0
        return 1e9 * profile.items / profile.steps / step_ns

    def _reported_profile(self) -> Profile:
        raise NotImplementedError


def of_profile(profile: Profile) -> Utilisation | None:
    """See `Profile.utilisation`."""
    again = every = 0
    for (_, phase), totals in profile.cells.items():
        every += totals.flops
        again += totals.flops if phase == "recompute" else 0
    if profile.peak is None or not every:
        return None
    time_ns = profile.wall_ns - sum(map(overhead_ns, profile.cells.items()))
    return _shares(every, again, time_ns, profile.peak)


def of_row(profile: Profile, row: Row) -> Utilisation | None:
    """The utilisation in the calls of a row, inner calls included: their operations in
    their time, on the device's clock if it was read. None as in `Profile.utilisation`.
    """
    if profile.peak is None or not row.flops_cumulative:
        return None
    again = row.phases["recompute"].flops_cumulative
    time_ns = computing_ns(profile, row)
    return _shares(row.flops_cumulative, again, time_ns, profile.peak)


def computing_ns(profile: Profile, row: Row) -> int:
    """How long the calls of a row took, on the device's clock if there is one."""
    if not profile.devices:
        return row.cumulative_ns
    return sum(totals.device_cumulative_ns for totals in row.phases.values())


def counted_types(profile: Profile) -> tuple[str, str]:
    """The type of numbers and the type of device of most operations: ``("bfloat16",
    "cuda")``; texts without characters if none were counted."""
    flops: Counter[tuple[str, str]] = Counter()
    for (path, _), totals in profile.cells.items():
        if totals.flops:
            types = _types_of_product(profile.modules[path[-1]])
            if types:
                flops[min(types, key=_width)] += totals.flops
    return flops.most_common(1)[0][0] if flops else ("", "")


def _types_of_product(info: ModuleInfo) -> list[tuple[str, str]]:
    """The types of a product's inputs, and the type to which autocast converts them: it
    converts single precision, never double (see torch's page on autocast)."""
    inputs = (kind.partition("@") for kind in info.inputs)
    types = [(name, device) for name, _, device in inputs if name in _WIDTHS]
    made = [name for name in info.autocast.split("|") if name in _WIDTHS]
    single = [device for name, device in types if name == "float32"]
    return [*types, *product(made, single)]


def _width(found: tuple[str, str]) -> tuple[int, str, str]:
    return _WIDTHS[found[0]], *found


def higher(one: Peak | None, other: Peak | None) -> Peak | None:
    """The peak of merged runs, whatever their order: the higher one, so that no share
    is reported too high."""
    both = [peak for peak in (one, other) if peak]
    if not both:
        return None
    speeds = [
        (peak.bandwidth.bytes_per_second, peak.bandwidth.source)
        for peak in both
        if peak.bandwidth
    ]
    bandwidth = Bandwidth(*max(speeds)) if speeds else None
    return Peak(*max((peak.flops, peak.source) for peak in both), bandwidth)


def _shares(every: int, again: int, time_ns: int, peak: Peak) -> Utilisation | None:
    possible = peak.flops * time_ns / 1e9
    if possible <= 0:
        return None
    return Utilisation((every - again) / possible, every / possible)


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
