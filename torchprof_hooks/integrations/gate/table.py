"""The message of a test whose step became slower."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from torchprof_hooks.integrations.gate.verdict import Row, Verdict
from torchprof_hooks.reports.table import TextColumn, format_table, plural, wrap
from torchprof_hooks.reports.units import best_time

_WIDTH: Final = 88
#: How many rows that are not slower are shown to compare with: the largest.
_OTHERS: Final = 5
_NOTE: Final = (
    "Shortest own times in a step, forward and backward; before: of the baseline, at "
    "the speed that the machine has now; limit: what the tolerance and the differences "
    "between processes allow. If it is meant to be slower: pytest --torchprof-update"
)


def failure(verdict: Verdict, path: Path, measured: int) -> str:
    """The rows that became slower, and some that did not.

    measured: in how many processes the step was measured.

    Example::

        slower than tests/.torchprof/test_step.a1b2c3d4.json, by the mean of 8 processes

        module        before     now      %  limit
        -------------------------------------------------
        Net.block     1.20ms  1.33ms  +10.8   +5.0  slower
        (whole step)  5.20ms  5.35ms   +2.9   +5.0
        Net.head      0.70ms  0.70ms   +0.1   +6.2
    """
    slower = verdict.slower
    others = [row for row in verdict.rows if not row.is_slower][:_OTHERS]
    how = f"by the mean of {plural(measured, 'process', 'processes')}"
    parts = (("only now", verdict.added), ("only before", verdict.gone))
    notes = [f"{title}: {', '.join(found)}" for title, found in parts if found]
    lines = [
        f"slower than {path}, {how}",
        "",
        _table([*slower, *others]),
        "",
        *(wrap(note, _WIDTH) for note in (*notes, _NOTE)),
    ]
    return "\n".join(lines)


def _table(rows: Sequence[Row]) -> str:
    labels = ["module", *(row.name for row in rows)]
    columns = [
        TextColumn("before", [best_time(row.before_ns) for row in rows]),
        TextColumn("now", [best_time(row.now_ns) for row in rows]),
        TextColumn("%", [f"{100 * row.excess:+.1f}" for row in rows]),
        TextColumn("limit", [f"{100 * row.limit:+.1f}" for row in rows]),
        TextColumn("", ["slower" * row.is_slower for row in rows]),
    ]
    return format_table(labels, columns, _WIDTH)
