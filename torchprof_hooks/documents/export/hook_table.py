"""The tables of hooks that measure, as Chainer prints them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tabulate import tabulate

from torchprof_hooks.documents.render.units import (
    check_byte_unit,
    check_unit,
    format_byte_column,
    format_times,
)

#: Field of a summary of memory -> its column, which is shown if it was measured.
#: Chainer has the first two.
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
    """The table of a timer, with rows in the order of the summary.

    name_header: "LinkName" or "FunctionName".
    columns: the fields of the summary to show, which are in seconds, and their headers.

    Raises:
        ValueError: unknown unit.
    """
    check_unit(unit)
    every_ns = [1e9 * sums[f] for f in columns for sums in summary.values()]
    texts = iter(format_times(every_ns, unit))  # one unit for all columns
    shown = {title: [next(texts) for _ in summary] for title in columns.values()}
    return _render(hook_name, name_header, summary, shown)


def render_bytes(
    hook_name: str, name_header: str, summary: Summary, unit: str, note: str = ""
) -> str:
    """The table of a memory hook, with the note, if any, on a line below.

    Raises:
        ValueError: unknown unit.
    """
    check_byte_unit(unit)
    measured = {key for sums in summary.values() for key in sums}
    shown = {
        title: format_byte_column([sums[key] for sums in summary.values()], unit)
        for key, title in _BYTES.items()
        if key in measured
    }
    table = _render(hook_name, name_header, summary, shown)
    return f"{table}\n{note}" if note and summary else table


def _render(
    hook_name: str,
    name_header: str,
    summary: Summary,
    columns: Mapping[str, Sequence[str]],
) -> str:
    if not summary:
        called = "function" if name_header == "FunctionName" else "module"
        return f"{hook_name}: no {called} was called, there is nothing to report."
    calls = [str(sums["occurrence"]) for sums in summary.values()]
    shown = {name_header: [*summary], **columns, "Occurrence": calls}
    # Headers are given as a row: tabulate would pad real headers by two more spaces.
    lines = zip(*([title, *texts] for title, texts in shown.items()), strict=True)
    aligned = ["right"] * len(shown)
    return tabulate(
        list(lines), tablefmt="plain", colalign=aligned, disable_numparse=True
    )
