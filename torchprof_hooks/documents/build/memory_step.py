"""Pictures of memory, over one step and at the peak; and what checkpointing would save
of that."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from torchprof_hooks.documents.build.layers import heat
from torchprof_hooks.documents.build.memory import kind_column, module_of
from torchprof_hooks.documents.build.view import View
from torchprof_hooks.documents.document import Column, Table
from torchprof_hooks.profiles.cells import call_site
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.kinds import LayerKind, kinds_of_names, without_numbers
from torchprof_hooks.profiles.memory import (
    MEMORY_KINDS,
    Checkpointing,
    HeldMemory,
    MemoryKind,
    MemoryStep,
)
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.phases import PHASE_TITLES
from torchprof_hooks.profiles.rows import Row

#: Where memory is: names from the outside in.
_Path = tuple[str, ...]


def step_course(profile: ProfileData) -> Iterator[Table]:
    """The course of a step, for a picture."""
    step = profile.memory.step if profile.memory else None
    if step is None or not step.points:
        return
    points = step.points
    kinds = [
        kind_column(kind, [point.by_kind[number] for point in points])
        for number, kind in enumerate(MEMORY_KINDS)
    ]
    yield Table(
        "memory_of_step",
        "Memory in use during one step",
        "what ran",
        [point.owner for point in points],
        [
            Column("since the begin", "ns", [p.since_ns for p in points], "since_ns"),
            Column("phase", "text", [PHASE_TITLES[p.phase] for p in points], "phase"),
            *(column for column in kinds if any(column.values)),
        ],
        notes=["a step with the highest peak, or nearly, from its begin to its end"],
        drawing="areas",
        is_detail=True,
    )


def peak_tree(profile: ProfileData) -> Iterator[Table]:
    """All that is in use at the peak; nothing if that is not known."""
    if profile.memory is None or not profile.memory.at_peak:
        return
    own = defaultdict[_Path, Counter[MemoryKind]](Counter)
    total = defaultdict[_Path, Counter[MemoryKind]](Counter)
    for held in profile.memory.at_peak:
        place = _place_of(profile, held)
        own[place][held.kind] += held.bytes
        for depth in range(1, len(place) + 1):
            total[place[:depth]][held.kind] += held.bytes

    sums = {place: found.total() for place, found in total.items()}

    def order(place: _Path) -> list[tuple[int, str]]:
        """Each place before those in it; of those beside it, the largest first."""
        return [(-sums[place[: n + 1]], place[n]) for n in range(len(place))]

    places = sorted(total, key=order)
    kinds = profile.memory.bytes_by_kind()
    sizes = [own[place].total() for place in places]
    totals = [sums[place] for place in places]
    alike, kind = Counter[LayerKind](), kinds_of_names(profile.modules)
    for place, size in zip(places, sizes, strict=True):
        alike[kind(place[-1])] += size
    whole = max(profile.memory.peak_bytes, 1)
    infos = defaultdict(ModuleInfo, profile.modules)
    yield Table(
        "memory_tree",
        "Memory in use at the peak",
        "owner",
        [_path_label(profile, place) for place in places],
        [
            Column("total", "bytes", totals, "bytes"),
            Column("%", "share", [size / whole for size in totals], "share"),
            Column("own", "bytes", sizes, "self_bytes"),
            *(
                kind_column(kind, [total[place][kind] for place in places])
                for kind in kinds
            ),
        ],
        names=[call_site(place, infos) for place in places],
        depths=[len(place) - 1 for place in places],
        tones=[heat(alike[kind(place[-1])] / whole) for place in places],
        notes=[
            "as wide as what a module, function or optimizer has in use, with all "
            "below it; the bar at the bottom: what it has itself"
        ],
        drawing="tree",
        is_detail=True,
    )


def _place_of(profile: ProfileData, held: HeldMemory) -> _Path:
    """``Net``, ``Net.blocks``, ``Net.blocks.0``, and the functions called there."""
    module = module_of(profile, held)
    functions = held.path[held.path.index(module) + 1 :] if module in held.path else ()
    if held.phase == "optimizer" or module.startswith("("):
        return (module, *functions)
    parts = module.split(".")
    return (*(".".join(parts[: n + 1]) for n in range(len(parts))), *functions)


def _path_label(profile: ProfileData, place: _Path) -> str:
    """The new part of the name, and the class of a module: ``0: Block``."""
    around = f"{place[-2]}." if len(place) > 1 else ""
    name = place[-1].removeprefix(around)
    info = profile.modules.get(place[-1], ModuleInfo())
    has_class = info.kind == "module" and info.class_name not in ("", name)
    return f"{name}: {info.class_name}" if has_class else name


# Checkpointing


class Saving(NamedTuple):
    """What checkpointing some modules would give, and take.

    label: the module, or the layers: ``Net.blocks.*: 12 Block``.
    peak_bytes, saved_bytes: of one step; saved: of its peak.
    extra_ns: how much longer a step would take: as long as the forward of these
        modules, as often as their backward ran.
    extra_share: the same, as a share of a step; 0.0 if no step's time is known.
    """

    label: str
    peak_bytes: int
    saved_bytes: int
    extra_ns: float
    extra_share: float


def savings(profile: ProfileData, step: MemoryStep) -> list[Saving]:
    """What checkpointing would save in a step, most first: of what saves as much, only
    what takes the least time."""
    rows = {row.name: row for row in profile.rows("module") if row.kind == "module"}
    times, found = profile.step_times, list[Saving]()
    for each in step.checkpointing:
        called = [rows[name] for name in each.modules if name in rows]
        if again_ns := sum(map(_again_ns, called)):
            found.append(
                Saving(
                    _saving_label(each, {row.class_name for row in called}),
                    each.peak_bytes,
                    step.peak_bytes - each.peak_bytes,
                    again_ns / max(profile.steps, 1),
                    again_ns / times.steps_ns if times.steps_ns else 0.0,
                )
            )
    found.sort(key=lambda one: (one.peak_bytes, one.extra_ns))
    least_ns, kept = float("inf"), []
    for one in found:
        if one.extra_ns < least_ns:
            least_ns = one.extra_ns
            kept.append(one)
    return kept


def _again_ns(row: Row) -> float:
    """How long the forward calls took of which backward has run. Of all calls, as steps
    differ from the recorded one: that may be one of several batches in a step."""
    forward, backward = row.phases["forward"], row.phases["backward"]
    return forward.cumulative_ns * backward.calls / max(forward.calls, 1)


def _saving_label(each: Checkpointing, class_names: set[str]) -> str:
    [class_name] = class_names if len(class_names) == 1 else [""]
    return LayerKind(without_numbers(each.modules[0]), class_name).label(each.modules)


def savings_table(view: View) -> Iterator[Table]:
    """What checkpointing would save; nothing if it would not. Times are those of what
    is shown, as in the tip."""
    memory, shown = view.profile.memory, view.shown
    step = memory.step if memory else None
    found = savings(shown, step) if step else []
    if not found:
        return
    peak_bytes = found[0].peak_bytes + found[0].saved_bytes
    columns = [
        Column("peak", "bytes", [one.peak_bytes for one in found], "peak_bytes"),
        Column("saved", "bytes", [one.saved_bytes for one in found], "saved_bytes"),
        Column(
            "% of peak",
            "share",
            [one.saved_bytes / peak_bytes for one in found],
            "saved_share",
        ),
        Column("longer", "ns", [one.extra_ns for one in found], "extra_ns"),
    ]
    shares = [one.extra_share for one in found]
    if any(shares):
        columns.append(Column("% of step", "share", shares, "extra_share", 1))
    rates = [one.saved_bytes * 1e9 / max(one.extra_ns, 1.0) for one in found]
    columns.append(Column("saved per second", "bytes", rates, "saved_per_s", 2))
    yield Table(
        "checkpointing",
        "What checkpointing would save in a step",
        "checkpointed",
        [one.label for one in found],
        columns,
        most=8,
        notes=[
            "peak: predicted by playing the step again, block by block; longer: the "
            "forward of these modules, which runs twice"
        ],
    )
