"""The table of a memory hook, as Chainer prints it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tabulate import tabulate

from torchprof_hooks.reports.byte_units import check_byte_unit, format_byte_column

#: Field of the summary -> its column. Chainer has the first two; the others are there
#: if they were measured.
_COLUMNS: Final = {
    "used_bytes": "UsedBytes",
    "acquired_bytes": "AcquiredBytes",
    "peak_bytes": "PeakBytes",
    "retained_bytes": "RetainedBytes",
}


def render(
    hook_name: str,
    name_header: str,
    summary: Mapping[str, Mapping[str, Any]],
    unit: str,
    note: str = "",
) -> str:
    """Columns right-aligned, two spaces between them, rows in the summary's order, and
    the note, if any, on a line of its own below.

    Raises:
        ValueError: unknown unit.
    """
    check_byte_unit(unit)
    if not summary:
        called = "function" if name_header == "FunctionName" else "module"
        return f"{hook_name}: no {called} was called, there is nothing to report."
    all_sums = summary.values()
    fields = [key for key in _COLUMNS if any(key in sums for sums in all_sums)]
    columns = [
        [name_header, *summary],
        *(
            [_COLUMNS[key], *format_byte_column([sums[key] for sums in all_sums], unit)]
            for key in fields
        ),
        ["Occurrence", *(sums["occurrence"] for sums in all_sums)],
    ]
    # Headers as a row: tabulate pads real ones by two more spaces.
    table = tabulate(
        list(zip(*columns, strict=True)),
        tablefmt="plain",
        colalign=["right"] * len(columns),
        disable_numparse=True,
    )
    return f"{table}\n{note}" if note else table
