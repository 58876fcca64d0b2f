"""What is exchanged with other processes, as tables: of one rank, and of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from torchprof_hooks.profiles.ranks.collectives import Collective
from torchprof_hooks.profiles.ranks.skew import RankCollective
from torchprof_hooks.reports.table import (
    Table,
    TextColumn,
    plural,
    table_lines,
    time_columns,
)
from torchprof_hooks.reports.units import best_byte_format

#: What the table of all ranks shows.
EXCHANGED: Final = (
    "What ranks exchange: of a call, on average; least, median, most: how long ranks "
    "wait for it"
)
#: Speeds below this are not told apart.
_LEAST_GB_PER_S = 0.001


def collective_lines(collectives: Sequence[Collective], width: int) -> list[str]:
    """A line for each function and group, the longest first; none without any.

    Times are sums over all calls: time in the calls, and waiting until they are
    complete, there or later. GB/s: a call's bytes by the time from its begin until it
    is seen to be complete.

    Example::

        exchanged with others             calls  bytes a call  in calls   waiting   GB/s
        all_gather_into_tensor (dp of 4)    320        4.10MB   12.10ms  830.20ms  1.558
        gradient buckets (of 4)              80       25.00MB    0.00ms   41.00ms  2.101
    """
    if not collectives:
        return []
    shown = sorted(collectives, key=lambda each: -(each.call_ns + each.waiting_ns))
    times = {
        "in calls": [each.call_ns for each in shown],
        "waiting": [each.waiting_ns for each in shown],
    }
    columns = [
        TextColumn("calls", [str(each.calls) for each in shown]),
        TextColumn("bytes a call", [_bytes_a_call(each) for each in shown]),
        *time_columns(times),
        TextColumn("GB/s", [_rate(each.bytes_per_second) for each in shown]),
    ]
    labels = ["exchanged with others", *map(_label, shown)]
    return table_lines(labels, columns, width)


def _label(each: Collective) -> str:
    """What was called, in which group: ``all_reduce (default_pg of 4)``."""
    if not each.group_size:
        return each.name
    return f"{each.name} ({each.group} of {each.group_size})".replace("( of", "(of")


def _bytes_a_call(each: Collective) -> str:
    """The bytes of a call's tensors, "" if it has none: ``4.10MB``."""
    if not each.bytes or not each.calls:
        return ""
    return best_byte_format(round(each.bytes / each.calls))


def _rate(found: float | None) -> str:
    """Bytes per second as GB (10^9 bytes) per second, "" if they are not known."""
    if found is None:
        return ""
    return f"{found / 1e9:.3f}" if found >= 1e9 * _LEAST_GB_PER_S else "<0.001"


def exchanged_lines(
    rows: Sequence[RankCollective], max_rows: int, width: int
) -> Iterator[str]:
    """A line for each function and group; none without any.

    Example::

        What ranks exchange: of a call, on average; least, median, most: how long ranks
        wait for it
        collective (group)       calls  bytes a call  ...   median     most  last   GB/s
        gradient buckets (of 4)    160        1.20MB  ...  30.10ms  30.44ms     2  1.601

    last: the rank that waits least, which most likely comes last.
    """
    if rows:
        yield EXCHANGED
        yield from table_lines(*exchanged_table(rows[:max_rows]), width)
    if len(rows) > max_rows:
        yield f"... {plural(len(rows) - max_rows, 'more row')}"


def exchanged_table(shown: Sequence[RankCollective]) -> Table:
    """The table of `exchanged_lines`."""
    times = {
        "in call": [row.median_call_ns for row in shown],
        "least": [row.least_ns for row in shown],
        "median": [row.median_ns for row in shown],
        "most": [row.most_ns for row in shown],
    }
    columns = [
        TextColumn("calls", [str(row.sum.calls) for row in shown]),
        TextColumn("bytes a call", [_bytes_a_call(row.sum) for row in shown]),
        *time_columns(times),
        TextColumn("last", [str(row.last_rank) for row in shown]),
        TextColumn("GB/s", [_rate(row.fastest) for row in shown]),
    ]
    return Table(["collective (group)", *(_label(row.sum) for row in shown)], columns)
