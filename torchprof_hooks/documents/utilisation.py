"""The share of its peak that a device reaches: MFU and HFU.

The terms are those of Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways"
(2022), appendix B: model FLOPs utilisation leaves out what is computed again, hardware
FLOPs utilisation includes it.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Final, NamedTuple

from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.peak import Peak
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.tree import Node

#: What makes utilisation less than it is.
NOT_COUNTED: Final = "operations of compiled code's backward are not counted"

#: Bytes of a number by type. Where the inputs of a product differ in type, it is
#: computed in the narrowest.
_WIDTHS: Final = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


class Utilisation(NamedTuple):
    """Shares of what the device could have done in the same time.

    mfu: of all operations but those of recompute.
    hfu: of all operations.
    """

    mfu: float
    hfu: float


def of_profile(profile: ProfileData) -> Utilisation | None:
    """See `Profile.utilisation`."""
    profile = profile.only_measured
    again = every = measuring_ns = 0
    for (_, phase), totals in profile.cells.items():
        every += totals.flops
        again += totals.flops if phase == "recompute" else 0
        measuring_ns += totals.self_ns if phase == "profiler" else 0
    if profile.peak is None or not every:
        return None
    time_ns = profile.wall_ns - measuring_ns
    return _shares(every, again, time_ns, profile.peak)


def of_row(profile: ProfileData, row: Row) -> Utilisation | None:
    """The utilisation in the calls of a row, with inner calls: from their operations
    and their time, by the device's clock if it was read. None where operations or the
    peak are not known."""
    if profile.peak is None or not row.flops_cumulative:
        return None
    again = row.phases["recompute"].flops_cumulative
    time_ns = computing_ns(profile, row)
    return _shares(row.flops_cumulative, again, time_ns, profile.peak)


def computing_ns(profile: ProfileData, row: Row) -> int:
    """The time in which the operations of a row were done, by the device's clock if it
    was read: that of its calls, without a backward of which none are counted. 0 if it
    is not known, as only a part of the backward is compiled code's."""
    backward = row.phases["backward"]
    inside = row.walk() if backward.flops_cumulative and isinstance(row, Node) else ()
    if any(n.compiled and n.phases["backward"].cumulative_ns > 0 for _, n in inside):
        return 0
    clock = "device_cumulative_ns" if profile.devices else "cumulative_ns"
    found: int = getattr(row, clock)
    return found if backward.flops_cumulative else found - getattr(backward, clock)


def lacks_backward(profile: ProfileData) -> bool:
    """Whether there is backward of compiled code: no operations of it are counted."""
    infos = profile.modules
    return any(
        phase == "backward" and any(infos[name].compiled for name in path)
        for path, phase in profile.cells
    )


def items_per_second(profile: ProfileData) -> float:
    """See `Profile.items_per_second`."""
    profile = profile.only_measured
    times = profile.step_times
    step_ns = times.mean_ns if times.later_steps else times.first_mean_ns
    if not profile.steps or step_ns <= 0:
        return 0.0
    return 1e9 * profile.items / profile.steps / step_ns


def counted_types(profile: ProfileData) -> tuple[str, str]:
    """The type of numbers and the type of device with the most operations:
    ``("bfloat16", "cuda")``; two empty texts if none were counted."""
    flops: Counter[tuple[str, str]] = Counter()
    for (path, _), totals in profile.cells.items():
        if totals.flops:
            types = _types_of_product(profile.modules[path[-1]])
            if types:
                narrowest = min(types, key=lambda each: (_WIDTHS[each[0]], *each))
                flops[narrowest] += totals.flops
    return flops.most_common(1)[0][0] if flops else ("", "")


def _types_of_product(info: ModuleInfo) -> list[tuple[str, str]]:
    """The types of a product's inputs, and the type to which autocast converts them: it
    converts single precision, never double (see torch's page on autocast)."""
    inputs = (kind.partition("@") for kind in info.inputs)
    types = [(name, device) for name, _, device in inputs if name in _WIDTHS]
    made = [name for name in info.autocast.split("|") if name in _WIDTHS]
    single = [device for name, device in types if name == "float32"]
    return [*types, *product(made, single)]


def _shares(every: int, again: int, time_ns: int, peak: Peak) -> Utilisation | None:
    possible = peak.flops * time_ns / 1e9
    if possible <= 0:
        return None
    return Utilisation((every - again) / possible, every / possible)
