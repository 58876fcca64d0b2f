"""The tables of hooks that measure, as Chainer prints them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from torchprof_hooks.reports.table import TextColumn, aligned, time_columns
from torchprof_hooks.reports.units import (
    check_byte_unit,
    check_unit,
    format_byte_column,
)

#: Field of a summary of memory -> its column. Chainer has the first two; a column is
#: there if it was measured.
_BYTES: Final = {
    "used_bytes": "UsedBytes",
    "acquired_bytes": "AcquiredBytes",
    "peak_bytes": "PeakBytes",
    "retained_bytes": "RetainedBytes",
}

Summary = Mapping[str, Mapping[str, Any]]


def render_times(
    hook_name: str,
    name_header: str,
    summary: Summary,
    unit: str,
    columns: Mapping[str, str],
) -> str:
    """The table of a timer, rows in the order of the summary.

    name_header: "LinkName" or "FunctionName".
    columns: the summary's fields of times, in seconds, and their headers.

    Raises:
        ValueError: unknown unit.
    """
    check_unit(unit)
    times = {
        header: [1e9 * sums[field] for sums in summary.values()]
        for field, header in columns.items()
    }
    return _render(hook_name, name_header, summary, time_columns(times, unit))


def render_bytes(
    hook_name: str, name_header: str, summary: Summary, unit: str, note: str = ""
) -> str:
    """The table of a memory hook, and the note, if any, on a line of its own below.

    Raises:
        ValueError: unknown unit.
    """
    check_byte_unit(unit)
    fields = {key for sums in summary.values() for key in sums}
    columns = [
        TextColumn(
            header, format_byte_column([sums[key] for sums in summary.values()], unit)
        )
        for key, header in _BYTES.items()
        if key in fields
    ]
    table = _render(hook_name, name_header, summary, columns)
    return f"{table}\n{note}" if note and summary else table


def _render(
    hook_name: str,
    name_header: str,
    summary: Summary,
    columns: Sequence[TextColumn],
) -> str:
    if not summary:
        called = "function" if name_header == "FunctionName" else "module"
        return f"{hook_name}: no {called} was called, there is nothing to report."
    return aligned(
        [
            [name_header, *summary],
            *([column.header, *column.texts] for column in columns),
            ["Occurrence", *(sums["occurrence"] for sums in summary.values())],
        ]
    )
