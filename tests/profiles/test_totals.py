from __future__ import annotations

from dataclasses import asdict, fields, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.build import own, profile_of, timed
from tests.profiles.views import one_row
from torchprof_hooks import Profile
from torchprof_hooks.profiles.measured_steps import MeasuredSteps
from torchprof_hooks.profiles.memory import (
    MemoryFailure,
    MemorySummary,
    MemoryTotals,
    merge_summaries,
)
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.totals import DERIVED, Totals


def test_mean_and_standard_deviation() -> None:
    eight = timed(2, 4, 4, 4, 5, 5, 7, 9)
    assert eight.mean_ns == 5.0  # 40 / 8
    assert eight.std_ns == 2.0  # sqrt(232/8 - 5**2) = sqrt(29 - 25)
    no_calls = Totals(self_ns=7)
    assert no_calls.mean_ns == no_calls.std_ns == 0.0


@pytest.mark.parametrize("duration", [10**9 + 1, 123_456_789_123, 3**35])
def test_rounding_does_not_make_the_variance_negative(duration: int) -> None:
    # Three equal calls; 3*d*d/3 - ((3*d)/3)**2 is 0 but for floating point.
    equal = Totals(3, duration_ns=3 * duration, squares_ns2=3 * duration**2 - 10**4)
    assert equal.std_ns >= 0.0


def numbered(first: int) -> Totals:
    """Totals with a number of its own in each field that cells have."""
    numbers = count(first)

    def filled(kind: Any, names: set[str]) -> Any:
        return kind(**{n: next(numbers) for n in sorted(names)})

    memory = filled(MemoryTotals, {each.name for each in fields(MemoryTotals)})
    stored = {each.name for each in fields(Totals)} - DERIVED - {"memory"}
    found: Totals = replace(filled(Totals, stored), memory=memory)
    return found


def flat(totals: Totals) -> dict[str, int]:
    values = {e.name: getattr(totals, e.name) for e in fields(Totals)}
    values |= asdict(values.pop("memory"))
    del values["memory_cumulative"]
    return values


def test_no_field_is_forgotten(tmp_path: Path) -> None:
    """In sums, differences, sums over inner calls, and files."""
    few, many = numbered(100), numbered(1000)
    one, other = flat(few), flat(many)
    extremes = {"min_ns": one, "max_ns": other, "peak_bytes": other}
    both = flat(few + many)
    assert both == {
        name: extremes[name][name] if name in extremes else value + other[name]
        for name, value in one.items()
    }
    left = flat((few + many).without(many))
    for name in one.keys() - extremes.keys():
        assert left[name] == one[name], name

    cells = {("Net", "forward"): few, ("Net > Net.a", "forward"): many}
    found = profile_of(cells, {"Net": "Net", "Net.a": "A"})
    found.save(tmp_path / "it.json")
    assert Profile.load(tmp_path / "it.json").cells == found.cells
    row = one_row(found, "Net").phases["forward"]
    for each in fields(Totals):
        own = each.metadata.get("inside")
        if own and own != "memory":
            assert getattr(row, each.name) == sum(
                getattr(totals.counted(), own) for totals in (few, many)
            ), each.name
    uncounted = flat(many.without_calls())
    assert {name for name, value in uncounted.items() if value} == {
        *("self_ns", "device_self_ns", "flops"),
        *("used_bytes", "acquired_bytes", "retained_bytes"),
    }


def test_a_float_is_a_field_like_others(tmp_path: Path) -> None:
    whole = Profile(measured=MeasuredSteps((0.5, -1.0, 2.0)))
    whole.save(tmp_path / "it.json")
    text = (tmp_path / "it.json").read_text(encoding="utf-8").replace("2.0", "2")
    (tmp_path / "it.json").write_text(text, encoding="utf-8")
    assert Profile.load(tmp_path / "it.json") == whole


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (Totals(), Totals(), 0),
        (timed(5), Totals(), 5),
        (Totals(self_ns=3), timed(5), 5),  # open until now: no call
        (timed(0), timed(5), 0),  # a call of 0 ns
    ],
)
def test_the_minimum_is_that_of_calls(
    left: Totals, right: Totals, expected: int
) -> None:
    assert (left + right).min_ns == (right + left).min_ns == expected


# Net calls a twice; a's calls contain those of a.f. Peaks are those of whole calls: the
# backward of Net frees 80 before a's rises by 90, so it rises by 10 itself.
PROFILE = profile_of(
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


def test_bytes_are_added_up_over_inner_calls_and_peaks_are_not() -> None:
    net, a = (one_row(PROFILE, name).phases for name in ("Net", "Net.a"))

    # f's are own bytes of a, but its peak is not that of a call of a.
    of_a = MemoryTotals(28, 64, 10, 50)
    assert a["forward"].memory == a["forward"].memory_cumulative == of_a
    assert net["forward"].memory == MemoryTotals(100, 1000, 10, 95)
    assert net["forward"].memory_cumulative == MemoryTotals(128, 1064, 20, 95)
    assert net["backward"].memory_cumulative == MemoryTotals(16, 2, -80, 10)
    means = [
        (phases["forward"].mean_used_bytes, phases["forward"].mean_retained_bytes)
        for phases in (net, a)
    ]
    assert means == [(128, 20), (14, 5)]
    no_calls = Totals(memory_cumulative=MemoryTotals(1, 1, 1, 1))
    assert no_calls.mean_used_bytes == no_calls.mean_retained_bytes == 0


def test_without_a_call_of_its_own_the_peak_is_that_of_the_inner_calls() -> None:
    # Net is recomputed only in parts.
    tree = PROFILE.tree(functions=True)
    (net,) = tree.children
    assert net.phases["recompute"].memory_cumulative == MemoryTotals(5, 0, 0, 7)
    assert tree.phases["forward"].memory_cumulative == MemoryTotals(128, 1064, 20, 95)
    recomputed = one_row(PROFILE, "Net").phases["recompute"]
    assert recomputed.memory_cumulative.used_bytes == 5


CUDA = MemorySummary("cuda:0", 100, ("Net", "Net.a"), "forward")
ELSEWHERE: tuple[tuple[str, ...], Phase] = ("Net",), "backward"


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (CUDA, CUDA),
        (None, CUDA),
        (MemorySummary("cuda:0", 101, *ELSEWHERE),) * 2,
        (
            MemorySummary("cuda:1", 99, *ELSEWHERE),
            MemorySummary("cuda:0, cuda:1", 100, ("Net", "Net.a"), "forward"),
        ),
        (  # a tie
            MemorySummary("cpu", 100, ("Net", "Net.b"), "backward"),
            MemorySummary("cpu, cuda:0", 100, ("Net", "Net.b"), "backward"),
        ),
        (
            MemorySummary(unavailable="no counter"),
            MemorySummary("cuda:0", 100, ("Net", "Net.a"), "forward", "no counter"),
        ),
    ],
    ids=["same", "none", "higher", "lower", "tie", "unavailable"],
)
def test_the_higher_peak_wins(
    other: MemorySummary | None, expected: MemorySummary
) -> None:
    assert merge_summaries(CUDA, other) == merge_summaries(other, CUDA) == expected


def test_a_failure_that_a_run_did_not_outlive_is_kept() -> None:
    ended, outlived = (
        replace(CUDA, peak_bytes=peak, failure=MemoryFailure(8, (), "forward", (), n))
        for n, peak in enumerate((100, 200))
    )
    for found in (ended.merge(outlived), outlived.merge(ended)):
        assert (found.peak_bytes, found.failure) == (200, ended.failure)
