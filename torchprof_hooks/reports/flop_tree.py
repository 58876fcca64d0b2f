"""The floating-point operations of the calls of a profile, as a tree in a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.operations.utilisation import Peak, computing_ns, of_row
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.reports.table import (
    Column,
    TextColumn,
    filled_columns,
    format_table,
    wrap,
)
from torchprof_hooks.reports.time_tree import PlacedNode, tree_labels
from torchprof_hooks.reports.units import best_count_format, counted

_LEGEND: Final = (
    "floating-point operations{per}, with inner calls; self: without; FLOP/s: of "
    "all calls{clock}; no formula: share of{host} time in calls that torch cannot "
    "count"
)
_RATES: Final = "; MFU, HFU: operations without and with recompute, of {peak}"
_EXCEEDED: Final = ", which is exceeded: it is not the most that the device can do"

#: Columns that are left out where the table is narrow, in this order.
_DISPENSABLE: Final = (("self",), ("HFU",), ("recompute",), ("forward", "backward"))


def _in_phase(phase: Phase) -> Callable[[Row], int]:
    return lambda row: row.phases[phase].flops_cumulative


_COLUMNS: Final = (
    Column("forward", _in_phase("forward"), is_kept=True),
    Column("backward", _in_phase("backward")),
    Column("recompute", _in_phase("recompute")),
    Column[Row]("self", lambda row: row.flops),
    Column[Row]("total", lambda row: row.flops_cumulative),
)


def flop_tree(profile: Profile, shown: Sequence[PlacedNode], width: int) -> str:
    """A heading, and the table of the nodes that are shown, in a measured step; ""
    where nothing was counted."""
    nodes = [(depth, node) for depth, node in shown if node.flops_cumulative]
    if not nodes:
        return ""
    rows = [node for _, node in nodes]
    labels = ["module", *tree_labels(nodes)]
    steps = profile.steps or 1
    columns = [
        *filled_columns(
            _COLUMNS, rows, lambda all_: [best_count_format(n / steps) for n in all_]
        ),
        TextColumn("FLOP/s", [best_count_format(_rate(profile, row)) for row in rows]),
        TextColumn("no formula", [f"{100 * _unknown(row):.1f} %" for row in rows]),
        *_shares(profile, rows),
    ]
    legend = _LEGEND.format(
        per=" per step" if profile.steps else "",
        clock=" on the device" if profile.devices else "",
        host=" the host's" if profile.devices else "",
    )
    if profile.peak:
        legend += _RATES.format(peak=peak_text(profile.peak))
        shares = (of_row(profile, row) for row in rows)
        legend += _EXCEEDED * any(each is not None and each.hfu > 1 for each in shares)
    table = format_table(labels, columns, width, _DISPENSABLE)
    return "\n".join([wrap(legend, width), table])


def _shares(profile: Profile, rows: Sequence[Row]) -> Iterator[TextColumn]:
    """MFU and HFU of each row, if a peak is known."""
    found = [of_row(profile, row) for row in rows]
    if any(found):
        for title, place in (("MFU", 0), ("HFU", 1)):
            texts = [f"{100 * each[place]:.1f} %" if each else "" for each in found]
            yield TextColumn(title, texts)


def utilisation_text(profile: Profile) -> str:
    """``MFU 41.2 %, HFU 45.0 % of 312.00 TFLOP/s (given as peak_flops)``, "" where no
    peak is known. A peak that is exceeded was none: that of a CPU is measured by matrix
    products, which may be slower than convolutions in some types."""
    found = profile.utilisation
    if profile.peak is None:
        return ""
    if found is None:
        return "unknown, for no operations were counted"
    peak = peak_text(profile.peak)
    if found.hfu > 1:
        share = f"{100 * found.hfu:.1f} % of what was taken for the peak"
        return f"unknown, for the program computes at {share}: {peak}"
    return f"MFU {100 * found.mfu:.1f} %, HFU {100 * found.hfu:.1f} % of {peak}"


def peak_text(peak: Peak) -> str:
    """``312.00 TFLOP/s (given as peak_flops)``."""
    number, prefix = counted(peak.flops)
    return f"{number} {prefix}FLOP/s ({peak.source})"


def _rate(profile: Profile, row: Row) -> float:
    """Operations per second, on the device's clock if there is one."""
    time_ns = computing_ns(profile, row)
    return 1e9 * row.flops_cumulative / time_ns if time_ns > 0 else 0.0


def _unknown(row: Row) -> float:
    """The share of a row's time in calls for which torch has no formula."""
    if row.cumulative_ns <= 0:
        return 0.0
    counted_ns = sum(totals.counted_cumulative_ns for totals in row.phases.values())
    return max(1 - counted_ns / row.cumulative_ns, 0.0)
