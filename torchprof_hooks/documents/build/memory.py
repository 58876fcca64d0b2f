"""What is said of memory: how much was in use at most, who had it and what it was; and
what calls did with it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from torchprof_hooks.documents.build.memory_step import savings_table, step_course
from torchprof_hooks.documents.build.memory_tree import (
    kind_column,
    module_of,
    peak_tree,
)
from torchprof_hooks.documents.build.tables import PlacedNode, tree_of
from torchprof_hooks.documents.build.view import View
from torchprof_hooks.documents.document import (
    Answer,
    Block,
    Column,
    Facts,
    Table,
    Value,
)
from torchprof_hooks.documents.render.units import best_byte_format
from torchprof_hooks.documents.words import (
    KIND_TITLES,
    PHASE_TITLES,
    kind_name,
)
from torchprof_hooks.profiles.cells import call_site
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.memory import (
    NO_MEMORY,
    HeldMemory,
    MemoryKind,
    MemorySummary,
    bytes_by_kind,
)
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import (
    OUTSIDE_NAME,
    Phase,
    SortBy,
    without_numbers,
)
from torchprof_hooks.profiles.rows import Row

#: The most kinds that the answer names, and rows of owners in a text.
_KINDS_NAMED: Final = 5
_MOST_OWNERS: Final = 12
#: Layers that have at least this share of a kind are named with it.
_MUCH: Final = 0.5
#: The outermost layer with a number: ``Net.blocks.3`` of ``Net.blocks.3.mlp.0``.
_LAYER: Final = re.compile(r".*?\.\d+(?=\.|$)")


def peak_answer(profile: ProfileData, next_step: str = "") -> Answer | None:
    """Who had most of the memory when most was in use, and what it was; None if that is
    not known. next_step: what shows more."""
    memory = profile.memory
    if memory is None or not memory.at_peak:
        return None
    kinds = memory.bytes_by_kind()
    numbers: dict[str, Value] = {
        "peak_bytes": memory.peak_bytes,
        "owner": peak_owner(profile, memory),
        "phase": memory.peak_phase,
    }
    numbers |= {kind_name(kind): n for kind, n in kinds.items()}
    owner, *_ = owners_of(profile, memory.at_peak)
    numbers |= {"most_owner": owner.label, "most_owner_bytes": owner.total}
    parts = [f"{KIND_TITLES[kind]} {best_byte_format(n)}" for kind, n in kinds.items()]
    if layers := _layers_text(profile, memory, next(iter(kinds))):
        parts[0] += f" ({layers})"
        who = ""
    else:
        who = f"most in {owner.label}, {best_byte_format(owner.total)}; "
    ran = f"when {peak_owner(profile, memory)} ran"
    return Answer(
        "memory_peak",
        f"Most memory ({memory.source.replace('cpu', 'CPU')})",
        best_byte_format(memory.peak_bytes),
        evidence=f"{who}{', '.join(parts[:_KINDS_NAMED])}; {ran}",
        numbers=numbers,
        next_step=next_step,
    )


def _layers_text(profile: ProfileData, memory: MemorySummary, kind: MemoryKind) -> str:
    """``blocks.*: 8 of 0.36GB``, if most memory of a kind is in such layers; or ""."""
    total, layers = 0, dict[str, Counter[str]]()
    for held in memory.at_peak:
        if held.kind == kind:
            total += held.bytes
            layer = _LAYER.match(module_of(profile, held))
            if layer is not None:
                alike = layers.setdefault(without_numbers(layer[0]), Counter())
                alike[layer[0]] += held.bytes
    for name, alike in layers.items():
        if len(alike) > 1 and alike.total() >= _MUCH * total:
            each = best_byte_format(alike.total() // len(alike))
            return f"{name.partition('.')[2]}: {len(alike)} of {each}"
    return ""


class Owner(NamedTuple):
    """A module, with other layers of its kind; or what is no module.

    name: the common name of the layers, ``blocks.*.norm``.
    """

    name: str
    class_name: str
    names: set[str]
    kinds: Counter[MemoryKind]

    @property
    def total(self) -> int:
        return self.kinds.total()

    @property
    def label(self) -> str:
        count = len(self.names)
        return f"{self.name}: {count} {self.class_name}" if count > 1 else self.name


def owner_kinds(profile: ProfileData) -> Callable[[HeldMemory], tuple[str, str]]:
    """A function that returns the common name of an owner and of layers of its kind;
    and their class."""
    # Modules that were not called yet have none of their own.
    classes = {without_numbers(n): m.class_name for n, m in profile.modules.items()}

    def kind(held: HeldMemory) -> tuple[str, str]:
        name = module_of(profile, held)
        common = without_numbers(name)
        info = profile.modules.get(name)
        class_name = info.class_name if info else classes.get(common)
        return common, class_name or "modules"

    return kind


def owners_of(profile: ProfileData, every: Sequence[HeldMemory]) -> list[Owner]:
    """Who has this memory, most first."""
    found: dict[tuple[str, str], Owner] = {}
    kind = owner_kinds(profile)
    for held in every:
        key = kind(held)
        owner = found.setdefault(key, Owner(*key, set(), Counter()))
        owner.names.add(module_of(profile, held))
        owner.kinds[held.kind] += held.bytes
    return sorted(found.values(), key=lambda owner: (-owner.total, owner.name))


def peak_table(view: View) -> Iterator[Table]:
    """The course of a step; who had what when most was in use; what would lower that.
    Nothing if it is not known."""
    profile, memory = view.profile, view.profile.memory
    if memory is None or not memory.at_peak:
        return
    yield from step_course(profile)
    yield from peak_tree(profile)
    title = "Memory in use at the peak, by owner"
    yield owner_table(profile, "memory_at_peak", title, memory.at_peak)
    yield from savings_table(view)


def owner_table(
    profile: ProfileData, name: str, title: str, held: Sequence[HeldMemory]
) -> Table:
    """A row for each owner, with layers of a kind in one."""
    owners = owners_of(profile, held)
    totals = [owner.total for owner in owners]
    columns = [
        kind_column(kind, [owner.kinds[kind] for owner in owners])
        for kind in bytes_by_kind(held)
    ]
    columns.append(Column("total", "bytes", totals, "bytes"))
    shares = [total / max(sum(totals), 1) for total in totals]
    columns.append(Column("%", "share", shares, "share"))
    return Table(
        name,
        title,
        "owner",
        [owner.label for owner in owners],
        columns,
        most=_MOST_OWNERS,
        left_out="{count} more owners, {share}",
        shares=shares,
    )


def memory_text(profile: ProfileData, memory: MemorySummary) -> str:
    """The peak, the call in which it was, and the device: ``peak 1.25GB in Net.head
    (backward), of cuda:0``; or why it is not known."""
    if not memory.source:
        return f"not measured: {memory.unavailable}"
    peak = best_byte_format(memory.peak_bytes)
    source = memory.source.replace("cpu", "tensors on the CPU")
    text = f"peak {peak} in {peak_owner(profile, memory)}, of {source}"
    if memory.unavailable:
        text += f"; in a part of the run it was not measured: {memory.unavailable}"
    return text


def peak_numbers(profile: ProfileData, memory: MemorySummary) -> dict[str, Value]:
    """The peak for programs; {} if memory was not measured."""
    if not memory.source:
        return {}
    owner = peak_owner(profile, memory)
    return {"memory_peak_bytes": memory.peak_bytes, "memory_peak_owner": owner}


def peak_owner(profile: ProfileData, memory: MemorySummary) -> str:
    """The owner when most memory was in use: ``Net.head (backward)``."""
    return place_of(profile, memory.peak_path, memory.peak_phase)


def place_of(profile: ProfileData, path: tuple[str, ...], phase: Phase) -> str:
    """A call and its phase: ``Net.head: linear(8x4, 4x4) (backward)``."""
    if not path:
        return OUTSIDE_NAME
    infos = {name: profile.modules.get(name, ModuleInfo()) for name in path}
    is_call = infos[path[-1]].kind in ("module", "function")
    return call_site(path, infos) + f" ({phase})" * is_call


def _per_call(row: Row, phase: Phase) -> float:
    """The bytes that the allocator hands out in a call, with inner calls."""
    totals = row.phases.get(phase)
    if totals is None:
        return 0
    # Parts of a module may be recomputed without a call of the module.
    calls = totals.calls or row.calls
    return totals.memory_cumulative.used_bytes / calls if calls else 0


def _memory_columns(rows: Sequence[Row]) -> list[Column]:
    """The columns of bytes: handed out, retained, peak and acquired."""
    drop_order: dict[Phase, int] = {
        "forward": 0,
        "backward": 0,
        "recompute": 2,
        "optimizer": 3,
        "data": 3,
        "communication": 3,
    }
    columns = [
        Column(
            PHASE_TITLES[phase],
            "bytes",
            [_per_call(row, phase) for row in rows],
            f"{phase}_used_bytes",
            number,
        )
        for phase, number in drop_order.items()
    ]
    retained = [row.phases["forward"].mean_retained_bytes for row in rows]
    columns.insert(1, Column("retained", "bytes", retained, "retained_bytes"))
    memories = [[t.memory_cumulative for t in row.phases.values()] for row in rows]
    peaks = [max(memory.peak_bytes for memory in each) for each in memories]
    acquired = [sum(memory.acquired_bytes for memory in each) for each in memories]
    columns += [
        Column("peak", "bytes", peaks, "peak_bytes"),
        Column("acquired", "bytes", acquired, "acquired_bytes", 1),
    ]
    return columns


def _has_memory(row: Row) -> bool:
    return any(t.memory_cumulative != NO_MEMORY for t in row.phases.values())


def memory_tree(
    profile: ProfileData,
    memory: MemorySummary,
    nodes: Sequence[PlacedNode],
    sort_by: SortBy | None,
    of: str = "",
) -> Block:
    """The memory of calls; or why it is not known."""
    title = f"Memory of calls{of}"
    if not memory.at_peak:  # else the answers have it
        title = f"Memory{of}: {memory_text(profile, memory)}"
    if not memory.source:
        return Facts("memory", "", [title])
    nodes = [(depth, node) for depth, node in nodes if _has_memory(node)]
    rows = [node for _, node in nodes]
    columns = _memory_columns(rows)
    owner = "system" if memory.source == "cpu" else "device"
    legend = (
        "forward, backward, ...: bytes handed out per call, freed bytes count, too, "
        "with inner calls; retained: what a forward call leaves in use, on average; "
        "peak: highest rise during a call; acquired: taken from the "
        f"{owner}, in all calls"
    )
    return replace(tree_of("memory", title, nodes, columns, sort_by), notes=[legend])
