"""Ranks that do other work than others are compared with their peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.ranks_of import Work, as_rank, of_rank, rank_profile
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
        found.append(as_rank(rank_profile(work, waits, source)))
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
    ranks = in_mesh([FIRST, SLOW_FIRST, SECOND, SECOND], MESH)
    assert ranks.verdict.rank == 1
    assert ranks.verdict.lost_ns == pytest.approx(40e6)
    assert ranks.verdict.reason is not None
    assert ranks.verdict.reason[:3] == ("Net.body", "module", "forward")
    # Skew is that within a group.
    [row] = [r for r in ranks.rows() if (r.name, r.phase) == ("Net.body", "forward")]
    assert (row.worst, row.places) == (1, (0, 1))
    assert (row.least_ns, row.most_ns) == (10e6, 50e6)
    assert row.median_ns == row.most_ns - row.skew_ns == 10e6


ALIKE, EVERYBODY = [FIRST] * 4, ((0, 1, 2, 3),)
BOTH: Work = {**FIRST, **SECOND}
MORE: Work = {**BOTH, ("Net", "forward"): 1}


@pytest.mark.parametrize(
    ("works", "sizes", "peers"),
    [
        (ALIKE, {}, EVERYBODY),
        (ALIKE, {"dp": 2, "tp": 2}, EVERYBODY),
        (ALIKE, {"pp": 4}, EVERYBODY),  # nobody has a peer
        (ALIKE, {"pp": 2, "tp": 2}, ((0, 1), (2, 3))),
        (ALIKE, {"tp": 2, "pipeline": 2}, ((0, 2), (1, 3))),
        # Those that call other modules are no peers, whatever it is called; those that
        # do something besides are.
        ([FIRST, SECOND] * 2, {"dp": 2, "part": 2}, ((0, 2), (1, 3))),
        ([MORE, BOTH, BOTH, BOTH], {"dp": 2, "tp": 2}, EVERYBODY),
    ],
)
def test_who_is_compared_with_whom(
    works: list[Work], sizes: dict[str, int], peers: tuple[tuple[int, ...], ...]
) -> None:
    assert in_mesh(works, sizes).peers == peers


def test_ranks_of_which_one_has_no_place_are_compared() -> None:
    found = in_mesh([FIRST, FIRST, SECOND, SECOND], MESH).ranks
    one = replace(found[0], provenance=found[0].provenance._replace(coordinates=()))
    assert RanksData((one, *found[1:]), 4).peers == ((0, 1, 2, 3),)
