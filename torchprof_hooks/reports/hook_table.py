"""The tables of hooks that measure, as Chainer prints them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from torchprof_hooks.reports.table import aligned
from torchprof_hooks.reports.units import (
    check_byte_unit,
    check_unit,
    format_byte_column,
    format_times,
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

    def format_all(columns_s: list[list[float]]) -> list[list[str]]:
        texts = iter(format_times([1e9 * s for each in columns_s for s in each], unit))
        return [[next(texts) for _ in each] for each in columns_s]

    return _render(hook_name, name_header, summary, columns, format_all)


def render_bytes(
    hook_name: str, name_header: str, summary: Summary, unit: str, note: str = ""
) -> str:
    """The table of a memory hook, and the note, if any, on a line of its own below.

    Raises:
        ValueError: unknown unit.
    """
    check_byte_unit(unit)
    fields = {key for sums in summary.values() for key in sums}
    columns = {key: header for key, header in _BYTES.items() if key in fields}
    table = _render(
        hook_name,
        name_header,
        summary,
        columns,
        lambda all_bytes: [format_byte_column(each, unit) for each in all_bytes],
    )
    return f"{table}\n{note}" if note and summary else table


def _render(
    hook_name: str,
    name_header: str,
    summary: Summary,
    columns: Mapping[str, str],
    format_all: Callable[[list[list[Any]]], list[list[str]]],
) -> str:
    if not summary:
        called = "function" if name_header == "FunctionName" else "module"
        return f"{hook_name}: no {called} was called, there is nothing to report."
    all_sums = summary.values()
    texts = format_all([[sums[field] for sums in all_sums] for field in columns])
    return aligned(
        [
            [name_header, *summary],
            *(
                [header, *cells]
                for header, cells in zip(columns.values(), texts, strict=True)
            ),
            ["Occurrence", *(sums["occurrence"] for sums in all_sums)],
        ]
    )
