"""What calls do beside taking time: the tables of floating-point operations, memory
and communication."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from torchprof_hooks.documents import utilisation
from torchprof_hooks.documents.build.facts import peak_text
from torchprof_hooks.documents.build.memory import memory_text
from torchprof_hooks.documents.build.tables import PlacedNode, tree_of
from torchprof_hooks.documents.document import Block, Column, Facts, Table
from torchprof_hooks.profiles.collectives import Collective
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.memory import NO_MEMORY, MemorySummary
from torchprof_hooks.profiles.names import MODULE_PHASES, Phase, SortBy
from torchprof_hooks.profiles.phases import PHASE_TITLES
from torchprof_hooks.profiles.rows import Row

#: The phases whose bytes per call have a column: see `Column.drop_order`.
_MEMORY_PHASES: Final[Mapping[Phase, int]] = {
    "forward": 0,
    "backward": 0,
    "recompute": 2,
    "optimizer": 3,
    "data": 3,
    "communication": 3,
}


def flop_tree(
    profile: ProfileData,
    nodes: Sequence[PlacedNode],
    sort_by: SortBy | None,
    of: str = "",
) -> Iterator[Table]:
    """The floating-point operations of calls per step; nothing if none were counted."""
    counted = [(depth, node) for depth, node in nodes if node.flops_cumulative]
    if not (counted and profile.has_functions):
        return
    rows = [node for _, node in counted]
    steps = profile.steps or 1
    columns = [
        Column(
            phase,
            "flops",
            [row.phases[phase].flops_cumulative / steps for row in rows],
            f"{phase}_flops",
            drop_order=3 if phase == "recompute" else 4,
        )
        for phase in MODULE_PHASES
    ]
    columns += [
        Column("self", "flops", [row.flops / steps for row in rows], "self_flops", 1),
        Column("total", "flops", [row.flops_cumulative / steps for row in rows]),
        Column("FLOP/s", "flops", [_rate(profile, row) for row in rows]),
        Column("no formula", "share", [_unknown(row) for row in rows], "", 0, True),
        *_utilisation(profile, rows),
    ]
    per = " per step" if profile.steps else ""
    per += "," * bool(per and of)
    title = f"Floating-point operations{per}{of}: with inner calls; self: without"
    notes = [_flop_legend(profile)]
    yield replace(tree_of("flops", title, counted, columns, sort_by), notes=notes)


def _flop_legend(profile: ProfileData) -> str:
    clock, host = (" on the device", " the host's") if profile.devices else ("", "")
    text = (
        f"FLOP/s: of all calls{clock}; no formula: share of{host} time in calls that "
    )
    text += "torch cannot count"
    if utilisation.lacks_backward(profile):
        text += f"; {utilisation.NOT_COUNTED}, nor is its time in FLOP/s"
    if profile.peak:
        text += "; MFU, HFU: operations without and with recompute, of "
        text += peak_text(profile.peak)
    return text


def _utilisation(profile: ProfileData, rows: Sequence[Row]) -> Iterator[Column]:
    found = [utilisation.of_row(profile, row) for row in rows]
    if any(found):
        mfu = [each.mfu if each else None for each in found]
        hfu = [each.hfu if each else None for each in found]
        yield Column("MFU", "share", mfu, "mfu")
        yield Column("HFU", "share", hfu, "hfu", drop_order=2)


def _rate(profile: ProfileData, row: Row) -> float:
    """Operations per second, by the device's clock if it was read."""
    time_ns = utilisation.computing_ns(profile, row)
    return 1e9 * row.flops_cumulative / time_ns if time_ns > 0 else 0.0


def _unknown(row: Row) -> float:
    """The share of a row's time in calls for which torch has no formula."""
    if row.cumulative_ns <= 0:
        return 0.0
    counted_ns = sum(totals.counted_cumulative_ns for totals in row.phases.values())
    return max(1 - counted_ns / row.cumulative_ns, 0.0)


def _per_call(row: Row, phase: Phase) -> float:
    """The bytes that the allocator hands out in a call, with inner calls."""
    totals = row.phases.get(phase)
    if totals is None:
        return 0
    # Parts of a module may be recomputed without a call of the module.
    calls = totals.calls or row.calls
    return totals.memory_cumulative.used_bytes / calls if calls else 0


def _memory_columns(rows: Sequence[Row]) -> list[Column]:

    def column(title: str, values: Sequence[float], name: str, order: int = 0) -> None:
        found.append(Column(title, "bytes", values, f"{name}_bytes", order))

    found = list[Column]()
    for phase, order in _MEMORY_PHASES.items():
        used = [_per_call(row, phase) for row in rows]
        column(PHASE_TITLES[phase], used, f"{phase}_used", order)
        if phase == "forward":
            retained = [row.phases[phase].mean_retained_bytes for row in rows]
            column("retained", retained, "retained")
    every = [[t.memory_cumulative for t in row.phases.values()] for row in rows]
    column("peak", [max(one.peak_bytes for one in each) for each in every], "peak")
    acquired = [sum(one.acquired_bytes for one in each) for each in every]
    column("acquired", acquired, "acquired", 1)
    return found


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
    nodes = [
        (depth, row)
        for depth, row in nodes
        if any(t.memory_cumulative != NO_MEMORY for t in row.phases.values())
    ]
    columns = _memory_columns([row for _, row in nodes])
    owner = "system" if memory.source == "cpu" else "device"
    legend = (
        "forward, backward, ...: bytes handed out per call, freed bytes count, too, "
        "with inner calls; retained: what a forward call leaves in use, on average; "
        "peak: highest rise during a call; acquired: taken from the "
        f"{owner}, in all calls"
    )
    return replace(tree_of("memory", title, nodes, columns, sort_by), notes=[legend])


def communication(collectives: Sequence[Collective]) -> Iterator[Table]:
    """A row for each function and group, the longest time first. Times are sums over
    all calls: in the calls, and waiting for them to complete, in the call or later.
    GB/s: bytes divided by the time from a call's begin until the program found it
    complete. Nothing if nothing was exchanged."""
    if not collectives:
        return
    shown = sorted(collectives, key=lambda each: -(each.call_ns + each.waiting_ns))
    rates = [r if (r := each.bytes_per_second) is None else r / 1e9 for each in shown]
    columns = [
        Column("calls", "count", [each.calls for each in shown], shows_zeros=True),
        Column("bytes a call", "bytes", [bytes_a_call(e) for e in shown], "call_bytes"),
        Column("in calls", "ns", [each.call_ns for each in shown], "call_ns", 0, True),
        Column("waiting", "ns", [e.waiting_ns for e in shown], "waiting_ns", 0, True),
        Column("GB/s", "number", rates, "gb_per_s", 0, True),
    ]
    labels = [collective_label(each) for each in shown]
    title = "What was exchanged with other processes, in the whole run"
    yield Table("communication", title, "collective (group)", labels, columns)


def collective_label(each: Collective) -> str:
    """The function, and the group: ``all_reduce (default_pg of 4)``."""
    if not each.group_size:
        return each.name
    return f"{each.name} ({each.group} of {each.group_size})".replace("( of", "(of")


def bytes_a_call(each: Collective) -> float | None:
    """The mean bytes of a call's tensors; None if it has none."""
    return each.bytes / each.calls if each.bytes and each.calls else None
