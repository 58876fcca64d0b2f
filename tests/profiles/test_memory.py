from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from tests.helpers import hand_built, own
from tests.profile_of import profile_of
from torchprof_hooks import Profile
from torchprof_hooks.profiles.memory import (
    NO_MEMORY,
    MemorySummary,
    MemoryTotals,
    merge_summaries,
)
from torchprof_hooks.profiles.names import Grouping, Phase
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.totals import Totals

# Net calls a twice; a's calls contain those of a.f. Peaks are those of whole calls: the
# backward of Net frees 80 before a's rises by 90, so it rises by 10 itself.
PROFILE = hand_built(
    {
        ("Net", "forward"): own(1, 1, memory=MemoryTotals(100, 1000, 10, 95)),
        ("Net > Net.a", "forward"): own(1, 2, memory=MemoryTotals(20, 0, 6, 50)),
        ("Net > Net.a > f(2)", "forward"): own(1, 2, memory=MemoryTotals(8, 64, 4, 60)),
        ("Net", "backward"): own(1, 1, memory=MemoryTotals(7, 0, -80, 10)),
        ("Net > Net.a", "backward"): own(1, 2, memory=MemoryTotals(9, 2, 0, 90)),
        ("Net > Net.a > f(2)", "recompute"): own(1, 2, memory=MemoryTotals(5, 0, 0, 7)),
    },
    {"Net": "Net", "Net.a": "A"},
    memory=MemorySummary("cuda:0", 4096, ("Net", "Net.a"), "backward"),
)


def one_row(name: str, by: Grouping = "module", profile: Profile = PROFILE) -> Row:
    (row,) = [row for row in profile.rows(by) if row.name == name]
    return row


def test_adding_adds_everything_but_the_peak() -> None:
    assert MemoryTotals(1, 2, 3, 4) + MemoryTotals(10, -20, 30, 3) == MemoryTotals(
        11, -18, 33, 4
    )
    assert MemoryTotals(1, 2, 3, 4) + NO_MEMORY == MemoryTotals(1, 2, 3, 4)


def test_another_peak() -> None:
    assert MemoryTotals(1, 2, 3, 4).with_peak(9) == MemoryTotals(1, 2, 3, 9)


def test_bytes_are_added_up_over_inner_calls_as_times_are() -> None:
    net, a = (one_row(name).phases["forward"] for name in ("Net", "Net.a"))

    # f's are own bytes of a, but its peak is not that of a call of a.
    assert a.memory == a.memory_cumulative == MemoryTotals(28, 64, 10, 50)
    assert net.memory == MemoryTotals(100, 1000, 10, 95)
    assert net.memory_cumulative == MemoryTotals(128, 1064, 20, 95)


def test_the_peak_of_a_call_is_its_own_even_if_that_of_an_inner_call_is_higher() -> (
    None
):
    net = one_row("Net").phases["backward"]

    assert net.memory_cumulative == MemoryTotals(16, 2, -80, 10)


def test_without_a_call_of_its_own_the_peak_is_that_of_the_inner_calls() -> None:
    # Net is recomputed only in parts.
    tree = PROFILE.tree(functions=True)
    (net,) = tree.children

    assert net.phases["recompute"].memory_cumulative == MemoryTotals(5, 0, 0, 7)
    assert tree.phases["forward"].memory_cumulative == MemoryTotals(128, 1064, 20, 95)
    assert one_row("Net").phases["recompute"].memory_cumulative.used_bytes == 5


def test_functions_have_bytes_and_peaks_of_their_own() -> None:
    function = one_row("f", by="function").phases["forward"]
    modules = one_row("(modules, outside functions)", by="function").phases["forward"]

    assert function.memory == function.memory_cumulative == MemoryTotals(8, 64, 4, 60)
    assert modules.memory == MemoryTotals(120, 1000, 16, 0)


@pytest.mark.parametrize("by", ["module", "class", "function", "call"])
def test_own_bytes_add_up_however_rows_are_grouped(by: Grouping) -> None:
    every = [t.memory for row in PROFILE.rows(by) for t in row.phases.values()]

    assert sum(memory.used_bytes for memory in every) == 149
    assert sum(memory.acquired_bytes for memory in every) == 1066
    assert sum(memory.retained_bytes for memory in every) == -60


def test_means_are_those_of_a_call_with_its_inner_calls() -> None:
    net = one_row("Net").phases["forward"]
    a = one_row("Net.a").phases["forward"]

    assert (net.mean_used_bytes, net.mean_retained_bytes) == (128, 20)
    assert (a.mean_used_bytes, a.mean_retained_bytes) == (14, 5)
    assert Totals(memory_cumulative=MemoryTotals(1, 1, 1, 1)).mean_used_bytes == 0
    assert Totals(memory_cumulative=MemoryTotals(1, 1, 1, 1)).mean_retained_bytes == 0


CUDA = MemorySummary("cuda:0", 100, ("Net", "Net.a"), "forward")


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (CUDA, CUDA),
        (
            MemorySummary("cuda:0", 101, ("Net",), "backward"),
            MemorySummary("cuda:0", 101, ("Net",), "backward"),
        ),
        (
            MemorySummary("cuda:1", 99, ("Net",), "backward"),
            MemorySummary("cuda:0, cuda:1", 100, ("Net", "Net.a"), "forward"),
        ),
        (
            MemorySummary("cpu", 100, ("Net", "Net.b"), "backward"),
            MemorySummary("cpu, cuda:0", 100, ("Net", "Net.b"), "backward"),  # a tie
        ),
        (
            MemorySummary(unavailable="no counter"),
            MemorySummary("cuda:0", 100, ("Net", "Net.a"), "forward", "no counter"),
        ),
    ],
)
def test_the_higher_peak_wins(other: MemorySummary, expected: MemorySummary) -> None:
    assert CUDA.merge(other) == expected == other.merge(CUDA)


def test_reasons_are_joined() -> None:
    a, b = (MemorySummary(unavailable=reason) for reason in ("b c", "a"))

    assert a.merge(b) == MemorySummary(unavailable="a; b c") == b.merge(a).merge(a)


@pytest.mark.parametrize("summary", [None, CUDA])
def test_a_run_without_memory_changes_nothing(summary: MemorySummary | None) -> None:
    assert merge_summaries(summary, None) == summary == merge_summaries(None, summary)


def test_profiles_are_merged_with_their_memory() -> None:
    other: Phase = "backward"
    merged = PROFILE.merge(
        hand_built(
            {("Net", "forward"): own(1, 3, memory=MemoryTotals(60, 0, 30, 200))},
            {"Net": "Net"},
            memory=MemorySummary("cuda:1", 5000, ("Net",), other),
        )
    )

    assert merged.memory == MemorySummary("cuda:0, cuda:1", 5000, ("Net",), other)
    assert one_row("Net", profile=merged).phases["forward"].memory == MemoryTotals(
        160, 1000, 40, 200
    )
    assert PROFILE.merge(profile_of()).memory == PROFILE.memory


def test_memory_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        CUDA.peak_bytes = 9  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        NO_MEMORY.used_bytes = 9  # type: ignore[misc]
