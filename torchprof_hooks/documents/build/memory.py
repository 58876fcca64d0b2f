"""What is said of memory: how much was in use at most, who had it and what it was; and
what calls did with it."""

from __future__ import annotations

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
from torchprof_hooks.documents.words import KIND_TITLES, kind_name
from torchprof_hooks.profiles.cells import call_site
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.kinds import (
    LayerKind,
    grouped,
    kinds_of_names,
    layer_around,
    without_numbers,
)
from torchprof_hooks.profiles.memory import (
    NO_MEMORY,
    HeldMemory,
    MemoryKind,
    MemorySummary,
    bytes_by_kind,
)
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import OUTSIDE_NAME, Phase, SortBy
from torchprof_hooks.profiles.phases import PHASE_TITLES
from torchprof_hooks.profiles.rows import Row

#: The most kinds that the answer names, and rows of owners in a text.
_KINDS_NAMED: Final = 5
_MOST_OWNERS: Final = 12
#: Layers that have at least this share of a kind are named with it.
_MUCH: Final = 0.5


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
            if layer := layer_around(module_of(profile, held)):
                alike = layers.setdefault(without_numbers(layer), Counter())
                alike[layer] += held.bytes
    for name, alike in layers.items():
        if len(alike) > 1 and alike.total() >= _MUCH * total:
            each = best_byte_format(alike.total() // len(alike))
            return f"{name.partition('.')[2]}: {len(alike)} of {each}"
    return ""


class Owner(NamedTuple):
    """A module, with other layers of its kind; or what is no module."""

    kind: LayerKind
    names: set[str]
    kinds: Counter[MemoryKind]

    @property
    def total(self) -> int:
        return self.kinds.total()

    @property
    def label(self) -> str:
        """``blocks.*.norm: 4 Norm``. A single layer has the name of its kind, too: it
        may be another one in the next step."""
        return self.kind.label(self.names) if len(self.names) > 1 else self.kind.name


def owner_kinds(profile: ProfileData) -> Callable[[HeldMemory], LayerKind]:
    """A function that returns the kind of an owner."""
    kind = kinds_of_names(profile.modules)
    return lambda held: kind(module_of(profile, held))


def owners_of(profile: ProfileData, every: Sequence[HeldMemory]) -> list[Owner]:
    """Who has this memory, most first."""
    found: list[Owner] = []
    for kind, alike in grouped(every, owner_kinds(profile)).items():
        kinds: Counter[MemoryKind] = Counter()
        for held in alike:
            kinds[held.kind] += held.bytes
        names = {module_of(profile, held) for held in alike}
        found.append(Owner(kind, names, kinds))
    return sorted(found, key=lambda owner: (-owner.total, owner.kind.name))


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
