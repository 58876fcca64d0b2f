"""The table of a TimerHook, as Chainer prints it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tabulate import tabulate

from torchprof_hooks.reports.units import check_unit, choose_unit, format_time


def render(
    hook_name: str, summary: Mapping[str, Mapping[str, Any]], unit: str, backward: bool
) -> str:
    """Columns right-aligned, two spaces between them, rows in the summary's order.

    Raises:
        ValueError: unknown unit.
    """
    check_unit(unit)
    if not summary:
        return f"{hook_name}: no module was called, there is nothing to report."
    fields = ["elapsed_time", "backward_time"] if backward else ["elapsed_time"]
    if unit == "auto":
        unit = choose_unit(
            max(sums[field] for sums in summary.values() for field in fields) * 1e9
        )
    rows = [
        [name, *(_cell(sums[field], unit) for field in fields), sums["occurrence"]]
        for name, sums in summary.items()
    ]
    times = ["ElapsedTime", "BackwardTime"][: len(fields)]
    headers = ["LinkName", *times, "Occurrence"]
    # Headers as a row: tabulate pads real ones by two more spaces.
    return tabulate(
        [headers, *rows],
        tablefmt="plain",
        colalign=["right"] * len(headers),
        disable_numparse=True,
    )


def _cell(seconds: float, unit: str) -> str:
    value_ns = seconds * 1e9
    return format_time(value_ns, choose_unit(value_ns) if unit[:4] == "auto" else unit)
