"""The memory of the calls of a profile, as a tree in a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from torchprof_hooks.profiles.cells import call_site
from torchprof_hooks.profiles.memory import MemorySummary
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import OUTSIDE_NAME, Phase
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.reports.table import Column, filled_columns, format_table, wrap
from torchprof_hooks.reports.time_tree import PlacedNode, tree_labels
from torchprof_hooks.reports.units import best_byte_format


def _used(phase: Phase) -> Callable[[Row], float]:
    def used_per_call(row: Row) -> float:
        if phase not in row.phases:
            return 0
        totals = row.phases[phase]
        # A module may be recomputed in parts, without a call of its own.
        calls = totals.calls or row.calls
        return totals.memory_cumulative.used_bytes / calls if calls else 0

    return used_per_call


def _peak(row: Row) -> int:
    return max(totals.memory_cumulative.peak_bytes for totals in row.phases.values())


def _acquired(row: Row) -> int:
    every = (totals.memory_cumulative for totals in row.phases.values())
    return sum(memory.acquired_bytes for memory in every)


_COLUMNS: Final = (
    Column("forward", _used("forward")),
    Column[Row](
        "retained",
        lambda row: row.phases["forward"].mean_retained_bytes,
        is_kept=True,
    ),
    Column("backward", _used("backward")),
    Column("recompute", _used("recompute")),
    Column("step", _used("optimizer")),
    Column("data", _used("data")),
    Column("communication", _used("communication")),
    Column("peak", _peak),
    Column("acquired", _acquired),
)

#: A note about peaks that are lower bounds.
AT_LEAST: Final = "at least: read where calls begin and end"

_LEGEND: Final = (
    "{used}: bytes handed out per call, {freed}, with inner calls; retained: still in "
    "use when forward returned; peak: highest rise during a call{bound}; acquired: "
    "taken from the {owner}, in all calls"
)


def memory_tree(
    profile: Profile, memory: MemorySummary, shown: Sequence[PlacedNode], width: int
) -> str:
    """A heading, and the table of the nodes that are shown."""
    above = wrap(heading(profile, memory), width)
    if not memory.source:
        return above
    nodes = [node for _, node in shown]
    # Net bytes of forward are what is retained: once is enough.
    all_columns = _COLUMNS[1:] if memory.is_net else _COLUMNS
    columns = filled_columns(all_columns, nodes, format_each)
    table = format_table(["module", *tree_labels(shown)], columns, width)
    legend = _LEGEND.format(
        used="backward, ..." if memory.is_net else "forward, backward, ...",
        freed="less those freed" if memory.is_net else "freed or not",
        bound=f", {AT_LEAST}" if memory.peaks_are_lower_bounds else "",
        owner="system" if memory.source == "cpu" else "device",
    )
    return "\n".join([above, wrap(legend, width), table])


def format_each(values: Sequence[float]) -> list[str]:
    """Every value in a unit of its own: sizes in one table differ by more than times,
    and in the unit of the largest most would be 0.00."""
    return [best_byte_format(round(value)) for value in values]


def heading(profile: Profile, memory: MemorySummary) -> str:
    """What was measured of memory, and its peak."""
    if not memory.source:
        return f"memory was not measured: {memory.unavailable}"
    text = f"memory of {_source(memory)}: {peak_text(profile, memory)}"
    if memory.unavailable:
        text += f"; in a part of the run it was not measured: {memory.unavailable}"
    return text


def peak_text(profile: Profile, memory: MemorySummary) -> str:
    """``peak 1.25GB in Net.head (backward)``."""
    at_least = "at least " * memory.peaks_are_lower_bounds
    peak = best_byte_format(memory.peak_bytes)
    return f"peak {at_least}{peak} in {_peak_owner(profile, memory)}"


def _source(memory: MemorySummary) -> str:
    if not memory.is_net:
        tensors = "tensors on the CPU, by the threads that were measured"
        return f"{memory.source.replace('cpu', tensors)} (gross)"
    net = "net: freed bytes are subtracted"
    if memory.source == "cpu":
        return f"the process (C allocator, {net})"
    return f"{memory.source} ({net})"


def _peak_owner(profile: Profile, memory: MemorySummary) -> str:
    """Who was at work when the memory in use was highest: ``Net.head (backward)``."""
    path = memory.peak_path
    if not path:
        return OUTSIDE_NAME
    infos = {name: profile.modules.get(name, ModuleInfo()) for name in path}
    is_call = infos[path[-1]].kind in ("module", "function")
    return call_site(path, infos) + f" ({memory.peak_phase})" * is_call
