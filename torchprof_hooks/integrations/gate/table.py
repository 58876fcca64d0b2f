"""What a test that has become slower says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from torchprof_hooks.integrations.gate.verdict import Row, Verdict
from torchprof_hooks.reports.table import TextColumn, format_table, plural, wrap
from torchprof_hooks.reports.units import best_time

_WIDTH: Final = 88
#: Rows that are not slower: the largest, to compare with.
_OTHERS: Final = 5


def failure(verdict: Verdict, path: Path, reference_ns: int, measured: int) -> str:
    """The rows that became slower, and some that did not.

    reference_ns: what the reference took now: times are told in today's nanoseconds.
    measured: in how many processes it was measured.

    Example::

        slower than tests/.torchprof/test_step.a1b2c3d4.json, in each of 4 measurements

        module        before     now      %  limit
        -------------------------------------------------
        Net.block     1.20ms  1.33ms  +10.8   +5.0  slower
        (whole step)  5.20ms  5.35ms   +2.9   +5.0
        Net.head      0.70ms  0.70ms   +0.1   +6.2
    """
    slower = verdict.slower
    others = [row for row in verdict.rows if not row.is_slower][:_OTHERS]
    how = f"in each of {plural(measured, 'measurement')}"
    lines = [
        f"slower than {path}, {how}",
        "",
        _table([*slower, *others], reference_ns),
        "",
        *_changed(verdict),
        *_notes(),
    ]
    return "\n".join(lines)


def _table(rows: Sequence[Row], reference_ns: int) -> str:
    labels = ["module", *(row.name for row in rows)]
    columns = [
        TextColumn("before", [best_time(row.old * reference_ns) for row in rows]),
        TextColumn("now", [best_time(row.new * reference_ns) for row in rows]),
        TextColumn("%", [f"{_percent(row.new, row.old):+.1f}" for row in rows]),
        TextColumn("limit", [f"{_percent(row.limit, row.old):+.1f}" for row in rows]),
        TextColumn("", ["slower" * row.is_slower for row in rows]),
    ]
    return format_table(labels, columns, _WIDTH)


def _percent(new: float, old: float) -> float:
    return 100 * (new / old - 1) if old else 0.0


def _changed(verdict: Verdict) -> list[str]:
    parts = (("only now", verdict.added), ("only before", verdict.gone))
    return [
        wrap(f"{title}: {', '.join(found)}", _WIDTH) for title, found in parts if found
    ]


def _notes() -> list[str]:
    return [
        wrap(
            "Shortest own times in a step, forward and backward, at the speed that the "
            "machine has today; limit: what the tolerance and the differences between "
            "the runs of the baseline allow. If it is meant to be slower: pytest "
            "--torchprof-update",
            _WIDTH,
        )
    ]
