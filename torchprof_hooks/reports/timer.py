"""The table of a TimerHook, as Chainer prints it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tabulate import tabulate

from torchprof_hooks.reports.units import check_unit, choose_unit, format_time


def render(
    hook_name: str,
    name_header: str,
    summary: Mapping[str, Mapping[str, Any]],
    unit: str,
    columns: Mapping[str, str],
) -> str:
    """Columns right-aligned, two spaces between them, rows in the summary's order.

    name_header: "LinkName" or "FunctionName".
    columns: the summary's fields of times, and what they are headed by.

    Raises:
        ValueError: unknown unit.
    """
    check_unit(unit)
    if not summary:
        what = "module" if name_header == "LinkName" else "function"
        return f"{hook_name}: no {what} was called, there is nothing to report."
    if unit == "auto":
        unit = choose_unit(
            max(sums[field] for sums in summary.values() for field in columns) * 1e9
        )
    rows = [
        [name, *(_cell(sums[field], unit) for field in columns), sums["occurrence"]]
        for name, sums in summary.items()
    ]
    headers = [name_header, *columns.values(), "Occurrence"]
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
