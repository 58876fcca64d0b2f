"""What was exchanged with other processes: sums, files, tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.build import MS, own, profile_of
from tests.documents.found import column, table_in
from tests.ranks_of import USUAL, as_rank, of_rank, rank_profile
from torchprof_hooks.documents.build.ranks import ranks_document
from torchprof_hooks.profiles.collectives import Collective, sum_of
from torchprof_hooks.profiles.ranks.ranks import RanksData, run_of

GATHER = Collective("all_gather", "dp", 4, 10, 5_000_000, 2 * MS, 3 * MS, 5 * MS)
REDUCE = Collective("all_reduce", "m", 2, 4, 400, MS, 40 * MS, 41 * MS)
UNNAMED = Collective("wait", "", 4, 6, 12 * 2**20, 0, 9 * MS, 0)
BARRIER = Collective("barrier", "dp", 4, 1, 0, MS, 0, MS)
ALL = (GATHER, REDUCE, BARRIER, UNNAMED)
PROFILE = replace(
    profile_of({("Net", "forward"): own(1)}, {"Net": "Net"}), collectives=ALL
)


def test_sums_are_by_name_and_group() -> None:
    elsewhere = GATHER._replace(group="tp")
    found = sum_of([GATHER, elsewhere, GATHER])
    twice = Collective("all_gather", "dp", 4, 20, 10_000_000, 4 * MS, 6 * MS, 10 * MS)
    assert found == (twice, elsewhere)
    merged = PROFILE.merge(replace(PROFILE, collectives=(REDUCE,)))
    assert merged.collectives == sum_of([*ALL, REDUCE])


def ranks() -> RanksData:
    """Two, of which the second waits less; the first makes a call alone, too."""
    every: list[tuple[Collective, ...]] = [
        (REDUCE, BARRIER),
        (REDUCE._replace(waiting_ns=4 * MS, elapsed_ns=5 * MS),),
    ]
    return run_of(
        as_rank(
            replace(rank_profile(USUAL, [1], of_rank(n, 2)), collectives=collectives)
        )
        for n, collectives in enumerate(every)
    )


def test_ranks_side_by_side() -> None:
    table = table_in(ranks_document(ranks()), "communication")
    for name, expected in {
        "calls": [8, 1],
        "call_bytes": [100, None],
        "call_ns": [MS // 4, MS],
        "least_ns": [MS, 0],
        "median_ns": [5_500_000, 0],
        "most_ns": [10 * MS, 0],
        "last_rank": [1, 0],
        "gb_per_s": [pytest.approx(400 / 0.005 / 1e9), None],
    }.items():
        assert column(table, name) == expected
