"""Ranks that do other work than others are compared with their peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.ranks_of import STEPS, Work, as_rank, of_rank, profile_of
from torchprof_hooks.documents.build.ranks import ranks_document
from torchprof_hooks.documents.document import Table
from torchprof_hooks.profiles.provenance import Coordinate
from torchprof_hooks.profiles.ranks.ranks import RanksData, run_of

#: The stages of a pipeline; the second one has more to do.
FIRST: Work = {
    ("Net.body", "forward"): 10,
    ("Net.body", "backward"): 20,
    ("(outside modules)", "outside"): 1,
}
SECOND: Work = {
    ("Net.head", "forward"): 30,
    ("Net.head", "backward"): 40,
    ("(outside modules)", "outside"): 1,
}
SLOW_FIRST: Work = {**FIRST, ("Net.body", "forward"): 50}

#: Ranks 0 and 1 are the first stage, twice; 2 and 3 the second.
MESH = {"pp": 2, "dp": 2}


def in_mesh(works: Sequence[Work], sizes: dict[str, int]) -> RanksData:
    """Ranks that wait for those that take longest; they are numbered as in a mesh of
    these sizes, the last of which counts fastest."""
    longest = max(sum(work.values()) for work in works)
    found = []
    for number, work in enumerate(works):
        places, rest = [], number
        for name, size in reversed(sizes.items()):
            places.append(Coordinate(name, rest % size, size))
            rest //= size
        source = of_rank(number, len(works), coordinates=tuple(reversed(places)))
        waits = [1 + longest - sum(work.values())]
        found.append(as_rank(profile_of(work, waits, source)))
    return run_of(found)


def test_a_stage_that_has_more_to_do_is_not_slow() -> None:
    works = [FIRST, FIRST, SECOND, SECOND]
    assert in_mesh(works, {}).verdict.rank == 2  # of which nobody has said so
    ranks = in_mesh(works, MESH)
    assert ranks.peers == ((0, 1), (2, 3))
    assert ranks.verdict.rank is None
    assert [row for row in ranks.rows() if row.skew_ns] == []


def test_a_slow_rank_among_its_peers() -> None:
    # The second stage takes as long, and waits as little.
    verdict = in_mesh([FIRST, SLOW_FIRST, SECOND, SECOND], MESH).verdict
    assert verdict.rank == 1
    assert verdict.lost_ns == pytest.approx(40e6)
    assert verdict.reason is not None
    assert (verdict.reason.row, verdict.reason.phase) == ("Net.body", "forward")


def test_skew_is_that_within_a_group() -> None:
    rows = in_mesh([FIRST, SLOW_FIRST, SECOND, SECOND], MESH).rows()
    [row] = [r for r in rows if (r.name, r.phase) == ("Net.body", "forward")]
    assert (row.worst, row.places) == (1, (0, 1))
    assert (row.least_ns, row.most_ns) == (10e6, 50e6)
    assert row.median_ns == row.most_ns - row.skew_ns == 30e6


@pytest.mark.parametrize(
    ("sizes", "peers"),
    [
        ({}, ((0, 1, 2, 3),)),
        ({"dp": 2, "tp": 2}, ((0, 1, 2, 3),)),
        ({"pp": 4}, ((0, 1, 2, 3),)),  # nobody has a peer
        ({"pp": 2, "tp": 2}, ((0, 1), (2, 3))),
        ({"tp": 2, "pipeline": 2}, ((0, 2), (1, 3))),
    ],
    ids=str,
)
def test_who_is_compared_with_whom(
    sizes: dict[str, int], peers: tuple[tuple[int, ...], ...]
) -> None:
    assert in_mesh([FIRST] * 4, sizes).peers == peers


def test_ranks_that_call_other_modules_are_no_peers_whatever_it_is_called() -> None:
    assert in_mesh([FIRST, SECOND] * 2, {"dp": 2, "part": 2}).peers == ((0, 2), (1, 3))


def test_a_rank_that_does_something_besides_is_a_peer() -> None:
    more = {**FIRST, ("Net", "forward"): 1}
    both: Work = {**FIRST, **SECOND}
    sizes = {"dp": 2, "tp": 2}
    assert in_mesh([{**both, **more}, both, both, both], sizes).peers == ((0, 1, 2, 3),)


def test_ranks_of_which_one_has_no_place_are_compared() -> None:
    found = in_mesh([FIRST, FIRST, SECOND, SECOND], MESH).ranks
    one = replace(found[0], provenance=found[0].provenance._replace(coordinates=()))
    assert RanksData((one, *found[1:]), 4).peers == ((0, 1, 2, 3),)


def test_the_report_says_where_ranks_are() -> None:
    found = ranks_document(in_mesh([FIRST, SLOW_FIRST, SECOND, SECOND], MESH))
    table = next(block for block in found.blocks if block.name == "ranks")
    assert isinstance(table, Table)
    columns = {column.name or column.title: column.values for column in table.columns}
    assert (columns["pp"], columns["dp"]) == ([0, 0, 1, 1], [0, 1, 0, 1])
    assert columns["steps"] == [STEPS] * 4
    assert columns["forward_ns"] == [10e6, 50e6, 30e6, 30e6]
    assert table.tones == ["", "slow", "", ""]
    assert table.notes == ["Compared with each other, for they do the same: 0, 1; 2, 3"]
