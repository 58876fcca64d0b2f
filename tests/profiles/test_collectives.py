"""What was exchanged with other processes: sums, files, tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers import hand_built, own
from tests.ranks_of import USUAL, as_rank, of_rank, profile_of
from torchprof_hooks import Profile
from torchprof_hooks.profiles.ranks.collectives import BUCKETS_NAME, Collective, sum_of
from torchprof_hooks.profiles.ranks.ranks import Ranks, run_of
from torchprof_hooks.profiles.ranks.skew import exchanged
from torchprof_hooks.reports.export.rows import render_json
from torchprof_hooks.reports.ranks.collectives import collective_lines
from torchprof_hooks.reports.ranks.export import ranks_json

MS = 1_000_000
GATHER = Collective("all_gather", "dp", 4, 10, 5_000_000, 2 * MS, 3 * MS, 5 * MS)
REDUCE = Collective("all_reduce", "m", 2, 4, 400, MS, 40 * MS, 41 * MS)
BUCKETS = Collective(BUCKETS_NAME, "", 4, 6, 12 * 2**20, 0, 9 * MS, 0)
BARRIER = Collective("barrier", "dp", 4, 1, 0, MS, 0, MS)
ALL = (GATHER, REDUCE, BARRIER, BUCKETS)
PROFILE = replace(
    hand_built({("Net", "forward"): own(1)}, {"Net": "Net"}), collectives=ALL
)


def test_how_fast_it_was() -> None:
    rates = [each.bytes_per_second for each in ALL]
    assert rates == [1e9, pytest.approx(400 / 0.041), None, None]


def test_sums_are_by_name_and_group() -> None:
    elsewhere = GATHER._replace(group="tp")
    found = sum_of([GATHER, elsewhere, GATHER])
    assert found == (
        Collective("all_gather", "dp", 4, 20, 10_000_000, 4 * MS, 6 * MS, 10 * MS),
        elsewhere,
    )


def test_merging_adds_up() -> None:
    merged = PROFILE.merge(replace(PROFILE, collectives=(REDUCE,)))
    assert merged.collectives == sum_of([*ALL, REDUCE])


def test_files_have_them(tmp_path: Path) -> None:
    PROFILE.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == PROFILE


TABLE = """\
exchanged with others    calls  bytes a call  in calls  waiting    GB/s
all_reduce (m of 2)          4       100.00B    1.00ms  40.00ms  <0.001
gradient buckets (of 4)      6        2.00MB    0.00ms   9.00ms
all_gather (dp of 4)        10      488.28KB    2.00ms   3.00ms   1.000
barrier (dp of 4)            1                  1.00ms   0.00ms"""


def test_the_table() -> None:
    assert "\n".join(collective_lines(ALL, 120)) == TABLE
    assert TABLE in PROFILE.report(full=True)
    assert collective_lines((), 120) == []


def test_json_has_them() -> None:
    first = json.loads(render_json(PROFILE))["collectives"][0]
    assert first == {**GATHER._asdict(), "bytes_per_second": 1e9}


def ranks() -> Ranks:
    """Two, of which the second waits less; the first makes a call alone, too."""
    every: list[tuple[Collective, ...]] = [
        (REDUCE, BARRIER),
        (REDUCE._replace(waiting_ns=4 * MS, elapsed_ns=5 * MS),),
    ]
    return run_of(
        as_rank(replace(profile_of(USUAL, [1], of_rank(n, 2)), collectives=collectives))
        for n, collectives in enumerate(every)
    )


RANKS_TABLE = """\
collective (group)   calls  bytes a call  in call   least  median     most  last    GB/s
all_reduce (m of 2)      8       100.00B   0.25ms  1.00ms  5.50ms  10.00ms     1  <0.001
barrier (dp of 4)        1                 1.00ms  0.00ms  0.00ms   0.00ms     0"""


def test_ranks_side_by_side() -> None:
    assert ranks().report(width=120).endswith(RANKS_TABLE)
    first, second = json.loads(ranks_json(ranks()))["collectives"]
    assert first == {
        "name": "all_reduce",
        "group": "m",
        "group_size": 2,
        "calls": 8,
        "bytes": 800,
        "ranks": [0, 1],
        "call_ns": [MS // 4, MS // 4],
        "waiting_ns": [10 * MS, MS],
        "last_rank": 1,
        "bytes_per_second": 400 / 0.005,
    }
    assert (second["ranks"], second["bytes_per_second"]) == ([0], None)


def test_what_nobody_called_is_no_row() -> None:
    rank = as_rank(profile_of(USUAL, [1], of_rank(0, 1)))
    assert exchanged([replace(rank, collectives=(REDUCE._replace(calls=0),))]) == ()
