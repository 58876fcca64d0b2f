"""Ranks of a run as JSON and CSV, for other programs. Units are in the names."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from torchprof_hooks.profiles.names import Grouping
from torchprof_hooks.profiles.ranks.peers import coordinates
from torchprof_hooks.profiles.ranks.rank import Rank
from torchprof_hooks.profiles.ranks.ranks import Ranks
from torchprof_hooks.profiles.ranks.skew import RankCollective, SkewRow, phase_times
from torchprof_hooks.reports.export.rows import csv_text
from torchprof_hooks.reports.ranks.sentences import verdict_text
from torchprof_hooks.reports.ranks.text import ROWS, ranks_report

_FIELDS: Final = (
    *("name", "kind", "phase", "least_ns", "median_ns", "most_ns", "worst_rank"),
    "skew_ns",
)


def rendered(
    ranks: Ranks,
    kind: str,
    by: Grouping | None,
    max_rows: int | None,
    width: int,
) -> str:
    """The ranks in a format: "text", "html", "json" or "csv"."""
    by = by or "module"
    if kind == "html":
        from torchprof_hooks.reports.html.ranks import ranks_page

        return ranks_page(ranks, by, max_rows)
    if kind == "text":
        return ranks_report(ranks, by, max_rows or ROWS, width)
    return (ranks_json if kind == "json" else ranks_csv)(ranks, by, max_rows)


def ranks_json(
    ranks: Ranks, by: Grouping = "module", max_rows: int | None = None
) -> str:
    """Everything about the ranks; all times are nanoseconds per step.

    Example::

        {"world_size": 4,
         "ranks": [{"rank": 0, "host": "node0", ..., "coordinates": {"dp": 0, "tp": 0},
                    "steps": 40, "step_ns": 52400000,
                    "phases": {"forward": 10120000, ...}}, ...],
         "missing": [],
         "stale": [{"rank": 3, "age_ns": 45000000000, "steps": 20, "has_ended": false}],
         "verdict": {"rank": 2, "row": "Net.head", "phase": "forward",
                     "lost_ns_per_step": 30120000, "text": "Rank 2 is slow: ..."},
         "rows": [{"name": "Net.head", "kind": "module", "phase": "forward",
                   "least_ns": ..., "median_ns": ..., "most_ns": ...,
                   "worst_rank": 2, "skew_ns": ...}, ...],
         "collectives": [{"name": "all_reduce", "group": "default_pg", "group_size": 4,
                          "calls": 160, "bytes": ..., "ranks": [0, 1, 2, 3],
                          "call_ns": [...], "waiting_ns": [...], "last_rank": 2,
                          "bytes_per_second": ...}]}

    Of collectives, calls and bytes are sums over all ranks; times are per call, one for
    each rank.

    Without a slow rank, the rank, row and phase of the verdict are null; the phase is
    null, too, if the row is slow in all phases together.
    """
    verdict = ranks.verdict
    reason = verdict.reason
    content = {
        "world_size": ranks.world_size,
        "ranks": [_rank_record(rank) for rank in ranks.ranks],
        "missing": list(ranks.missing),
        "stale": [each._asdict() for each in ranks.stale],
        "verdict": {
            "rank": verdict.rank,
            "row": reason.row if reason else None,
            "phase": reason.phase if reason else None,
            "lost_ns_per_step": round(verdict.lost_ns),
            "text": verdict_text(verdict),
        },
        "rows": list(_row_records(ranks, by, max_rows)),
        "collectives": [_collective_record(each) for each in ranks.collectives],
    }
    return json.dumps(content, indent=1)


def ranks_csv(
    ranks: Ranks, by: Grouping = "module", max_rows: int | None = None
) -> str:
    """One line for each row and phase.

    Example::

        name,kind,phase,least_ns,median_ns,most_ns,worst_rank,skew_ns
        Net.head,module,forward,850000,870000,31020000,2,30150000
    """
    return csv_text(_FIELDS, _row_records(ranks, by, max_rows))


def _rank_record(rank: Rank) -> dict[str, Any]:
    return {
        **rank.provenance._asdict(),
        "coordinates": coordinates(rank),
        "steps": rank.steps,
        "step_ns": round(rank.step_ns),
        "phases": {phase: round(ns) for phase, ns in phase_times(rank).items()},
    }


def _collective_record(row: RankCollective) -> dict[str, Any]:
    name, group, group_size, calls, bytes_, *_ = row.sum
    return {
        "name": name,
        "group": group,
        "group_size": group_size,
        "calls": calls,
        "bytes": bytes_,
        "ranks": list(row.ranks),
        "call_ns": [round(ns) for ns in row.call_ns],
        "waiting_ns": [round(ns) for ns in row.waiting_ns],
        "last_rank": row.last_rank,
        "bytes_per_second": row.fastest,
    }


def _row_records(
    ranks: Ranks, by: Grouping, max_rows: int | None
) -> Iterable[dict[str, Any]]:
    rows: tuple[SkewRow, ...] = ranks.rows(by)
    for row in rows[:max_rows]:
        yield {
            "name": row.name,
            "kind": row.kind,
            "phase": row.phase,
            "least_ns": round(row.least_ns),
            "median_ns": round(row.median_ns),
            "most_ns": round(row.most_ns),
            "worst_rank": ranks.ranks[row.worst].number,
            "skew_ns": round(row.skew_ns),
        }
