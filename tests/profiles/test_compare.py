from __future__ import annotations

import random
from math import inf, sqrt
from statistics import NormalDist, mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import FUNCTIONS, hand_built, own, timed
from tests.profiles.test_merge import profiles
from torchprof_hooks import Profile
from torchprof_hooks.profiles.compare import (
    Change,
    Comparison,
    MeanDuration,
    compare,
    mean_duration,
    noise_bound_ns,
)
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import GROUPINGS, Grouping, Phase
from torchprof_hooks.profiles.program import MeasuredSteps
from torchprof_hooks.profiles.totals import Totals


def net(*durations_ns: int, name: str = "Net") -> Profile:
    """A module whose calls took these times."""
    return hand_built({(name, "forward"): timed(*durations_ns)}, {name: "Net"})


def only(comparison: Comparison) -> Change:
    [change] = comparison.changes
    return change


def test_a_row_that_is_slower() -> None:
    change = only(compare(net(100, 100, 100), net(120, 120, 120)))
    assert (change.name, change.phase) == ("Net", "forward")
    assert (change.old.mean_ns, change.new.mean_ns) == (100, 120)
    assert (change.difference_ns, change.noise_ns) == (20, 0)
    assert (change.is_slower, change.is_faster) == (True, False)
    back = only(compare(net(120, 120, 120), net(100, 100, 100)))
    assert (back.is_slower, back.is_faster) == (False, True)


@pytest.mark.parametrize(
    ("old", "new", "is_slower"),
    [
        ([100] * 5, [110] * 5, False),  # the threshold
        ([100] * 5, [111] * 5, True),
        ([100] * 5, [90] * 5, False),
        # The first call does not hide what the others took.
        ([5000, *[100] * 9], [9000, *[120] * 9], True),
        ([5000, *[100] * 9], [9000, *[100] * 9], False),
        # Of a single call, nothing is known.
        ([100], [10_000], False),
        ([100], [10_000] * 9, False),
        ([100] * 5, [100] * 50, False),
        ([0] * 5, [0] * 5, False),
        ([0] * 5, [1] * 5, True),
    ],
)
def test_what_is_slower(old: list[int], new: list[int], is_slower: bool) -> None:
    change = only(compare(net(*old), net(*new), threshold=0.1))
    assert change.is_slower == is_slower


def test_rows_of_only_one_are_listed_and_are_not_slower() -> None:
    comparison = compare(net(1, 1, name="Old"), net(9, 9, name="New"))
    assert comparison.changes == ()
    assert comparison.gone == (("Old", "forward"),)
    assert comparison.added == (("New", "forward"),)
    assert not comparison.slower


def backward(totals: Totals) -> Profile:
    """Of a Net with such a backward."""
    forward = timed(100, 100)
    cells: dict[tuple[str, Phase], Totals] = {("Net", "forward"): forward}
    return hand_built({**cells, ("Net", "backward"): totals}, {"Net": "Net"})


def test_phases_are_compared_apart() -> None:
    slower = compare(backward(timed(100, 100)), backward(timed(200, 200))).slower
    assert [(c.name, c.phase) for c in slower] == [("Net", "backward")]
    # One without calls is not there.
    comparison = compare(backward(own(7, calls=0)), backward(timed(7, 7)))
    assert only(comparison).phase == "forward"
    assert comparison.added == (("Net", "backward"),)


def test_waiting_for_data_is_compared_and_what_is_not_called_is_not() -> None:
    def profile(*waits_ns: int) -> Profile:
        infos = {
            "(data loading)": ModuleInfo(kind="data"),
            "(profiler overhead)": ModuleInfo(kind="profiler"),
            "(outside modules)": ModuleInfo(kind="outside"),
        }
        cells: dict[tuple[str, Phase], Totals] = {
            ("(data loading)", "data"): timed(*waits_ns),
            ("(profiler overhead)", "profiler"): timed(*waits_ns),
            ("(outside modules)", "outside"): own(9, calls=0),
        }
        return hand_built(cells, infos)

    change = only(compare(profile(5, 5, 6), profile(9, 9, 9)))
    assert (change.name, change.phase) == ("(data loading)", "data")
    assert change.is_slower


def test_rows_are_grouped_as_asked() -> None:
    def named(by: Grouping) -> set[str]:
        return {change.name for change in compare(FUNCTIONS, FUNCTIONS, by).changes}

    rows = {"(optimizer) SGD", "(backward outside modules)"}
    assert named("module") == {"Net", "Net.fc", "Net.block", *rows}
    assert named("class") == {"Net", "Linear", *rows}
    assert {"linear", "relu", "cross_entropy"} < named("function")
    assert "Net.fc: linear(8x4, 4x4)" in named("call")
    with pytest.raises(ValueError, match=r"by must be 'module', .* not 'layer'"):
        named("layer")  # type: ignore[arg-type]


@given(profiles, profiles)
def test_any_two_profiles(old: Profile, new: Profile) -> None:
    for by in GROUPINGS:  # a profile is as fast as itself
        same = compare(old, old, by)
        assert not any(change.matters for change in same.changes)
        assert same.gone == same.added == ()
    # What is called is in one of three places.
    there, back = compare(old, new), compare(new, old)
    assert set(there.gone) == set(back.added)
    assert set(there.added) == set(back.gone)
    keys = [{(c.name, c.phase) for c in found.changes} for found in (there, back)]
    assert keys[0] == keys[1]


def noisy(seed: int, slower_by: float = 0.0, calls: int = 30) -> Profile:
    """20 layers of 1 ms and more, whose calls differ by 20 %; the first call takes much
    longer, and layer 7 is slower."""
    rng = random.Random(seed)
    names = {f"Net.{i}": "Linear" for i in range(20)}
    cells: dict[tuple[str, Phase], Totals] = {}
    for i, name in enumerate(names):
        usual = (i + 1) * 1e6 * (1 + slower_by * (i == 7))
        durations = [round(max(rng.gauss(usual, 0.2 * usual), 0)) for _ in range(calls)]
        cells[name, "forward"] = timed(round(20 * usual), *durations)
    return hand_built(cells, names)


def test_noise_is_not_called_slower() -> None:
    false_alarms = sum(
        bool(compare(noisy(2 * i), noisy(2 * i + 1), threshold=0).slower)
        for i in range(200)
    )
    assert false_alarms <= 6  # 2 are expected: a risk of 1 %


def test_what_was_planted_is_found() -> None:
    found = [
        change.name
        for i in range(20)
        for change in compare(noisy(2 * i), noisy(2 * i + 1, slower_by=0.5)).slower
    ]
    assert found.count("Net.7") == 20
    assert len(found) <= 22  # false alarms, see above


def test_noise_is_that_of_the_steps_that_were_measured() -> None:
    """Of a run that was measured in some steps, from which its rows are scaled to all
    of them."""
    calls = timed(*(10**6 + n for n in range(100)))
    found = {}
    for steps in (100, 25):
        measured = MeasuredSteps(steps=100, measured=steps)
        run = hand_built(
            {("a", "forward"): calls, ("a > f()", "forward"): calls},
            {"a": "Linear"},
            measured=measured,
        )
        found[steps] = compare(run, run, "call").changes
    for all_steps, some in zip(found[100], found[25], strict=True):
        assert some.old.mean_ns == all_steps.old.mean_ns
        assert some.noise_ns > all_steps.noise_ns
    averaged = {change.name: change.old.averaged for change in found[25]}
    assert sorted(averaged.values()) == [25, 25]


durations = st.lists(st.integers(0, 2**40), min_size=3, max_size=8)


@given(durations)
def test_mean_and_error_are_those_of_all_calls_but_the_slowest(
    values: list[int],
) -> None:
    found = mean_duration(timed(*values))
    others = sorted(values)[:-1] if len(set(values)) > 1 else values
    assert found.calls == len(values)
    assert found.averaged == len(others)
    assert found.mean_ns == pytest.approx(mean(others))
    error_ns = stdev(others) / sqrt(len(others))
    assert sqrt(found.error_ns2) == pytest.approx(error_ns)


@pytest.mark.parametrize(
    ("totals", "expected"),
    [
        (Totals(), MeanDuration(0, 0, 0.0, inf)),
        (timed(7), MeanDuration(1, 1, 7.0, inf)),
        (timed(4, 6), MeanDuration(2, 2, 5.0, 1.0)),  # (1 + 1) / 1 / 2
        (timed(5, 5, 5), MeanDuration(3, 3, 5.0, 0.0)),
    ],
)
def test_of_few_calls_none_is_left_out(totals: Totals, expected: MeanDuration) -> None:
    assert mean_duration(totals) == expected


@pytest.mark.parametrize("share", [0.5, 0.044])
def test_estimated_calls_tell_nothing_of_how_well_the_mean_is_known(
    share: float,
) -> None:
    values = [90, 100, 110, 104] * 25 + [500]
    calls = timed(*values)
    exact, estimated = mean_duration(calls), mean_duration(calls, share)
    assert (exact.averaged, estimated.averaged) == (100, round(100 * share))
    assert estimated.mean_ns == exact.mean_ns
    fewer = (exact.averaged - 1) / (estimated.averaged - 1)
    assert estimated.error_ns2 == pytest.approx(fewer * exact.error_ns2)
    assert mean_duration(calls, 0.01).error_ns2 == inf


def test_numbers_are_exact_where_floating_point_is_not() -> None:
    # A spread of 1 ns around a day: squares of about 7e27 ns2.
    day = 86_400 * 10**9
    assert mean_duration(timed(day, day + 2, day + 4)).error_ns2 == 1.0


def mean_of(calls: int, error_ns: float) -> MeanDuration:
    return MeanDuration(calls, calls, 100.0, error_ns**2)


EXACT = mean_of(9, 0.0)


@pytest.mark.parametrize(
    ("freedom", "risk", "t"),
    # From tables of Student's t.
    [(5, 0.01, 3.365), (10, 0.01, 2.764), (30, 0.001, 3.385), (120, 0.001, 3.160)],
)
def test_the_bound_is_a_quantile_of_students_t(
    freedom: int, risk: float, t: float
) -> None:
    # The other mean is exact: then the degrees of freedom are those of one.
    bound = noise_bound_ns(EXACT, mean_of(freedom + 1, error_ns=2.0), risk)
    assert bound == pytest.approx(2 * t, rel=0.03)


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 31.821), (2, 6.965), (3, 4.541), (4, 3.747)]
)
def test_of_very_few_calls_the_bound_is_too_high_rather_than_too_low(
    freedom: int, t: float
) -> None:
    bound = noise_bound_ns(EXACT, mean_of(freedom + 1, error_ns=1.0), 0.01)
    assert t <= bound <= 2 * t


def test_two_equal_errors_count_as_welch_says() -> None:
    # Equal errors of 6 calls each: 2 * 5 degrees of freedom, t(0.01) = 2.764.
    bound = noise_bound_ns(mean_of(6, error_ns=3.0), mean_of(6, error_ns=3.0), 0.01)
    assert bound == pytest.approx(2.764 * sqrt(9 + 9), rel=0.01)


def test_of_many_calls_the_bound_is_that_of_normal_distributions() -> None:
    bound = noise_bound_ns(mean_of(10**6, 3.0), mean_of(10**6, 4.0), 0.01)
    assert bound == pytest.approx(-NormalDist().inv_cdf(0.01) * 5, rel=1e-4)


def test_the_bound_of_equal_calls_and_of_a_single_one() -> None:
    assert noise_bound_ns(mean_of(5, 0.0), mean_of(5, 0.0), 0.01) == 0
    single = mean_duration(timed(5))
    assert noise_bound_ns(single, mean_of(5, 1.0), 0.01) == inf
    assert noise_bound_ns(single, single, 0.01) == inf
