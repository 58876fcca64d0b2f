"""What is between stamps, of activities that are built by hand."""

from __future__ import annotations

import pytest
from gpu_reasons import Interval, find_intervals, reason
from kernel_times import Activity, Move, Owner, Timeline

A, B, OUT = Owner("A", "forward"), Owner("B", "forward"), Owner("", "forward")
MAIN, OTHER = (0, 7), (0, 8)


def timeline(*moves: tuple[int, Owner]) -> Timeline:
    return Timeline(Move(*move) for move in moves)


def test_a_host_that_is_ahead_leaves_gaps_of_launches_only() -> None:
    found = find_intervals(
        [
            Activity(MAIN, 0, 1000, 1),
            Activity(MAIN, 1003, 1100, 11),  # the first of A
            Activity(MAIN, 1105, 1200, 12),
            Activity(MAIN, 1204, 1300, 21),  # the first of B
        ],
        timeline((0, OUT), (10, A), (20, B), (30, OUT)),
    )
    assert found[A] == Interval(2, 97 + 95, 0, 3, 5, 0)
    assert found[B] == Interval(1, 96, 0, 4, 0, 0)


def test_a_device_that_waits_for_the_host() -> None:
    found = find_intervals(
        [Activity(MAIN, 105, 125, 100), Activity(MAIN, 230, 240, 220)],
        timeline((0, A), (200, B), (210, A), (300, OUT)),
    )
    # A: until its launch and to its end; of B, that is all; then again.
    assert found[A] == Interval(2, 20 + 10, 100 + 75 + 10 + 60, 5 + 10, 0, 0)
    assert found[B] == Interval(host_gap_ns=10)
    assert sum(each.stamps_ns for each in found.values()) == 300


def test_kernels_in_other_streams_are_not_between_stamps() -> None:
    found = find_intervals(
        [Activity(MAIN, 1, 51, 1), Activity(OTHER, 1, 31, 1)],
        timeline((0, A), (1, A), (10, OUT)),
    )
    assert found[A].elsewhere_ns == 30
    assert found[A].kernels_ns == 80
    assert found[A].stamps_ns == 51


def test_kernels_that_overlap_are_busy_once() -> None:
    found = find_intervals(
        [Activity(MAIN, 1, 50, 1), Activity(MAIN, 40, 60, 2)],
        timeline((0, OUT), (1, A), (5, OUT)),
    )
    assert found[A].busy_ns == 59


def test_what_has_no_launch_is_nobodys() -> None:
    assert find_intervals([Activity(MAIN, 1, 50, None)], timeline((0, A))) == {}
    assert find_intervals([], timeline()) == {}


@pytest.mark.parametrize(
    ("found_ns", "interval", "said"),
    [
        (101, Interval(1, 100, 0, 1, 0), ""),
        (200, Interval(1, 100, 95, 5, 0), "gap for the host 95%"),
        (
            150,
            Interval(3, 100, 0, 10, 40),
            "gaps between its kernels 80%, gap before its first kernel 20%",
        ),
        (100, Interval(1, 100, elsewhere_ns=50), "another stream 100%"),
        (150, Interval(1, 100), "not explained 100%"),
        (0, Interval(), ""),
    ],
)
def test_the_largest_part_is_said_first(
    found_ns: int, interval: Interval, said: str
) -> None:
    assert reason(found_ns, interval) == said
