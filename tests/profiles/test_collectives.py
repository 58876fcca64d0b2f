"""What was exchanged with other processes: sums, files, tables."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.helpers import hand_built, own
from tests.ranks_of import USUAL, as_rank, of_rank, profile_of
from torchprof_hooks.documents.build.full import communication
from torchprof_hooks.documents.build.ranks import ranks_document
from torchprof_hooks.documents.document import Document, Table
from torchprof_hooks.profiles.collectives import Collective, sum_of
from torchprof_hooks.profiles.ranks.ranks import RanksData, run_of
from torchprof_hooks.profiles.ranks.skew import exchanged

MS = 1_000_000
GATHER = Collective("all_gather", "dp", 4, 10, 5_000_000, 2 * MS, 3 * MS, 5 * MS)
REDUCE = Collective("all_reduce", "m", 2, 4, 400, MS, 40 * MS, 41 * MS)
UNNAMED = Collective("wait", "", 4, 6, 12 * 2**20, 0, 9 * MS, 0)
BARRIER = Collective("barrier", "dp", 4, 1, 0, MS, 0, MS)
ALL = (GATHER, REDUCE, BARRIER, UNNAMED)
PROFILE = replace(
    hand_built({("Net", "forward"): own(1)}, {"Net": "Net"}), collectives=ALL
)


def test_sums_are_by_name_and_group() -> None:
    elsewhere = GATHER._replace(group="tp")
    found = sum_of([GATHER, elsewhere, GATHER])
    twice = Collective("all_gather", "dp", 4, 20, 10_000_000, 4 * MS, 6 * MS, 10 * MS)
    assert found == (twice, elsewhere)
    merged = PROFILE.merge(replace(PROFILE, collectives=(REDUCE,)))
    assert merged.collectives == sum_of([*ALL, REDUCE])


def values(table: Table) -> dict[str, list[object]]:
    columns = {column.name or column.title: column.values for column in table.columns}
    return {name: [*found] for name, found in columns.items()}


def table_in(document: Document) -> Table:
    [found] = (b for b in document.blocks if b.name == "communication")
    assert isinstance(found, Table)
    return found


def test_the_table() -> None:
    found = communication(ALL)
    labels = ["all_reduce (m of 2)", "wait (of 4)", "all_gather (dp of 4)"]
    assert found.labels == [*labels, "barrier (dp of 4)"]
    numbers = values(found)
    assert numbers["calls"] == [4, 6, 10, 1]
    assert numbers["call_bytes"] == [100, 2 * 2**20, 500_000, None]
    assert numbers["call_ns"] == [MS, 0, 2 * MS, MS]
    assert numbers["waiting_ns"] == [40 * MS, 9 * MS, 3 * MS, 0]
    assert numbers["gb_per_s"] == [pytest.approx(400 / 41e6), None, 1.0, None]


def test_reports_have_them() -> None:
    for label in communication(ALL).labels:
        assert label in PROFILE.report(full=True)
    [first, *_] = json.loads(PROFILE.to_json())["tables"]["communication"]["rows"]
    assert (first["name"], first["calls"]) == ("all_reduce (m of 2)", 4)


def ranks() -> RanksData:
    """Two, of which the second waits less; the first makes a call alone, too."""
    every: list[tuple[Collective, ...]] = [
        (REDUCE, BARRIER),
        (REDUCE._replace(waiting_ns=4 * MS, elapsed_ns=5 * MS),),
    ]
    return run_of(
        as_rank(replace(profile_of(USUAL, [1], of_rank(n, 2)), collectives=collectives))
        for n, collectives in enumerate(every)
    )


def test_ranks_side_by_side() -> None:
    numbers = values(table_in(ranks_document(ranks())))
    assert numbers["calls"] == [8, 1]
    assert numbers["call_bytes"] == [100, None]
    assert numbers["call_ns"] == [MS // 4, MS]
    assert numbers["least_ns"] == [MS, 0]
    assert numbers["median_ns"] == [5_500_000, 0]
    assert numbers["most_ns"] == [10 * MS, 0]
    assert numbers["last_rank"] == [1, 0]
    assert numbers["gb_per_s"] == [pytest.approx(400 / 0.005 / 1e9), None]


def test_what_nobody_called_is_no_row() -> None:
    rank = as_rank(profile_of(USUAL, [1], of_rank(0, 1)))
    assert exchanged([replace(rank, collectives=(REDUCE._replace(calls=0),))]) == ()
