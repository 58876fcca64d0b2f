"""Comparisons of a few runs: what is called slower, and how often that is wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Container
from typing import Any

import pytest
from hypothesis import given

from tests.build import MS, Cells, profile_of, timed
from tests.compared_runs import SIZES, Runs, in_turns, one_after_the_other, run
from tests.profiles.test_merge import profiles
from torchprof_hooks import Comparison, Profile, compare
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import FUSED_CLASS, GROUPINGS, Grouping
from torchprof_hooks.profiles.parts import Part
from torchprof_hooks.profiles.provenance import Provenance
from torchprof_hooks.profiles.run_times import call_times
from torchprof_hooks.profiles.step_times import Bucket, StepTimes
from torchprof_hooks.profiles.totals import Totals


def names(comparison: Comparison) -> set[str]:
    return {change.name for change in comparison.slower}


# How often it is wrong


@pytest.mark.parametrize(
    "runs",
    [
        lambda seed: in_turns(seed, 7),
        lambda seed: in_turns(seed, 5),
        lambda seed: one_after_the_other(seed, 7, speed=1.15),
        lambda seed: one_after_the_other(seed, 3, speed=1.15),
    ],
    ids=["in turns", "few in turns", "before and after", "few before and after"],
)
def test_of_200_comparisons_of_unchanged_code_at_most_2_alarm(
    runs: Callable[[int], tuple[Runs, Runs]],
) -> None:
    assert sum(bool(compare(*runs(seed)).slower) for seed in range(200)) <= 2


def test_ten_per_cent_in_one_module_are_found_in_19_of_20() -> None:
    found = [names(compare(*in_turns(n, 7, {7: 1.1}))) for n in range(20)]
    assert sum("Net.7" in each for each in found) >= 19
    assert sum(bool(each - {"Net.7", "Net"}) for each in found) <= 1


def test_three_runs_before_and_after_show_a_quarter_and_not_the_machine() -> None:
    """Once, the planted module passed, and the machine's speed gave the alarm."""
    for speed in (0.8, 1.25):
        found = compare(*one_after_the_other(1, 3, {7: 1.25}, speed=speed))
        assert names(found) == {"Net.7"}
        [change] = [each for each in found.slower if each.phase == "forward"]
        assert change.relative_change == pytest.approx(0.25, abs=0.06)
        assert found.machine.change == pytest.approx(speed - 1, abs=0.12)
        assert found.machine.cause == "machine"


# Layers of a kind


def blocks(seed: int, slower: dict[int, float], layers: int = 8) -> Profile:
    """A run of a model of blocks that differ by 2 % by chance. slower: factors."""
    rng = random.Random(seed)
    names = [f"Net.blocks.{number}" for number in range(layers)]
    cells: Cells = {
        (name, "forward"): timed(
            *(
                round(MS * rng.gauss(1, 0.02) * slower.get(number, 1.0))
                for _ in range(20)
            )
        )
        for number, name in enumerate(names)
    }
    for number, size in enumerate(SIZES):  # they tell the speed of the machine
        steady = [round(size * rng.gauss(1, 0.02)) for _ in range(20)]
        cells[f"Net.part{number}", "forward"] = timed(*steady)
    modules = {name: name.rpartition(".")[2] for name, _ in cells}
    return profile_of(cells, {**modules, **dict.fromkeys(names, "Block")})


@pytest.mark.parametrize(
    ("slower", "told"),
    [
        (dict.fromkeys(range(8), 1.2), {"Net.blocks.*: 8 Block"}),
        ({n: 1.2 for n in range(8) if n != 3}, {"Net.blocks.*: 8 Block"}),
        ({5: 1.2}, {"Net.blocks.5"}),
        ({5: 1.2, 6: 1.3, 7: 1.4}, {f"Net.blocks.{n}" for n in (5, 6, 7)}),
        ({}, set()),
    ],
)
def test_layers_that_changed_alike_are_one_row(
    slower: dict[int, float], told: set[str]
) -> None:
    olds = [blocks(seed, {}) for seed in range(5)]
    found = compare(olds, [blocks(seed, slower) for seed in range(-5, 0)])
    assert names(found) == told
    rows = {change.name for change in found.printed}
    assert "Net.blocks.*: 8 Block" in rows or told == names(found)
    assert "Net.blocks.0" not in rows
    assert {f"Net.blocks.{n}" for n in range(8)} < {c.name for c in found.changes}


def test_a_layer_that_changed_otherwise_than_the_others_is_a_row_of_its_own() -> None:
    changed = {**dict.fromkeys(range(8), 1.3), 2: 0.6}
    olds = [blocks(seed, {}) for seed in range(5)]
    found = compare(olds, [blocks(seed, changed) for seed in range(-5, 0)])
    assert names(found) == {"Net.blocks.*: 8 Block"}
    assert {change.name for change in found.faster} == {"Net.blocks.2"}


# What all rows have in common


def test_a_module_that_takes_most_of_the_time_is_not_the_machine() -> None:
    sizes = [*SIZES[:6], 60 * MS]
    found = compare(*in_turns(0, 7, {6: 1.1}, sizes=sizes))
    assert names(found) == {"Net", "Net.6"}
    assert found.machine.cause == "machine"
    found = compare(*in_turns(0, 7, {6: 0.5}, sizes=sizes))
    assert not found.slower
    assert {change.name for change in found.faster} == {"Net", "Net.6"}


def test_what_is_slower_as_a_whole_is_told_from_the_machine_by_turns() -> None:
    every = dict.fromkeys(range(len(SIZES)), 1.4)
    found = compare(*in_turns(0, 7, every))
    assert found.in_turns
    assert found.machine.cause == "program"
    assert len(found.slower) == len(found.changes)
    assert found.machine.change == pytest.approx(0.4, abs=0.1)
    found = compare(*one_after_the_other(0, 7, every))
    assert not found.in_turns
    assert not found.slower
    assert found.machine.cause == "machine"


def on_a_shared_machine(pairs: int, slow: Container[tuple[int, int]]) -> Any:
    """Runs in turns, of which the new ones take a tenth longer in a module. slow: the
    pairs and sides when the machine slows modules down by 30 to 60 %, not all alike."""
    rng = random.Random(0)
    sides: tuple[Runs, Runs] = [], []
    for pair in range(pairs):
        for side in (0, 1):
            is_slow = (pair, side) in slow
            factors = {n: 1.3 + 0.3 * (n % 2) for n in range(12)} if is_slow else {}
            if side:
                factors[6] = factors.get(6, 1.0) * 1.1
            began = 2 * pair + (side ^ (pair % 2)) + 1
            sides[side].append(run(rng, factors, drift=0.01, noise=0.005, began=began))
    return sides


@pytest.mark.parametrize(
    ("slow", "left_out"), [((), 0), ((1, 4), 4), ((0, 2, 3), 6), ((0, 1, 2, 3), 0)]
)
def test_runs_when_the_machine_was_slower_are_left_out(
    slow: tuple[int, ...], left_out: int
) -> None:
    found = compare(*on_a_shared_machine(7, {(pair, pair % 2) for pair in slow}))
    assert found.left_out == left_out
    assert len(found.olds) == len(found.news) == 7 - left_out // 2
    assert ("Net.6" in names(found)) is (len(slow) < 4)
    assert names(found) <= {"Net.6"}
    text = f"; without {left_out} runs when the machine was slower"
    assert (text in " ".join(found.report().split())) is (left_out > 0)


def test_times_are_those_of_the_runs_that_count() -> None:
    """Also if most others were slow."""
    slow = {(pair, side) for pair in range(8) for side in (0, 1)}
    found = compare(*on_a_shared_machine(12, slow))
    assert found.left_out == 16
    [change] = [c for c in found.slower if c.phase == "forward"]
    assert change.old_ns == pytest.approx(0.9 * SIZES[6], rel=0.03)
    assert change.new_ns == pytest.approx(1.1 * 0.9 * SIZES[6], rel=0.03)


def test_of_two_modules_none_is_the_measure_of_the_other() -> None:
    found = compare(*in_turns(0, 7, {0: 1.6}, sizes=[MS, MS], noise=0.005))
    assert found.machine.cause == "unknown"
    assert "Net.0" in names(found)
    assert "Net.1" not in names(found)
    found = compare(*in_turns(0, 7, sizes=[MS, MS]))
    assert not found.slower


# Runs


def test_of_one_run_on_a_side_the_ratio_counts_and_is_a_guess() -> None:
    old, new = (
        profile_of({("Net", "forward"): timed(ns)}, {"Net": "Net"}) for ns in (100, 106)
    )
    found = compare(old, new)
    [change] = found.slower
    assert found.is_guess
    assert change.relative_change == pytest.approx(0.06)
    assert change.spread == 0
    assert not compare(old, new, threshold=0.07).slower
    assert compare(*one_after_the_other(0, 2)).is_guess
    assert not compare(*one_after_the_other(0, 3)).is_guess


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ((100, 102, 104), (112, 113, 115), "slower"),
        ((112, 113, 115), (100, 102, 104), "faster"),
        ((100, 102, 104), (103, 113, 115), ""),  # one of them was as fast
        ((100, 102, 104), (105, 106, 107), ""),  # less than 5 %
        ((100, 102, 104), (107, 108, 115), ""),  # nearer than three runs differ
        ((100, 102, 104) * 3, (107, 108, 115) * 3, "slower"),
    ],
)
def test_the_rule(old: tuple[int, ...], new: tuple[int, ...], verdict: str) -> None:
    olds, news = ([net(ns) for ns in side] for side in (old, new))
    [change] = compare(olds, news).changes
    assert change.verdict == verdict


def test_chance() -> None:
    assert compare([net(1)] * 7, [net(1)] * 7).chance == 1 / 3432


def test_turns_are_known_by_the_times_of_runs_not_by_their_order() -> None:
    old, new = in_turns(0, 4)
    there = compare(old, new)
    assert there.in_turns
    assert compare(old[::-1], [new[2], new[0], new[3], new[1]]) == there
    assert not compare(old[:3], new).in_turns
    assert not compare(new[:2], old[2:]).in_turns
    unknown = [profile_of({("Net", "forward"): timed(9, 9)}, {"Net": "Net"})] * 2
    assert not compare(unknown, unknown).in_turns


def net(*durations_ns: int, name: str = "Net", kind: str = "Net") -> Profile:
    """A module whose calls took these times."""
    return profile_of({(name, "forward"): timed(*durations_ns)}, {name: kind}, steps=30)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ([], [net(1)], "old has no profile"),
        ([net(1)], [Profile()], "no module and no function was called in new"),
        ([net(1)], [net(1, name="Other")], "not profiles of one program: only 0 of 1"),
        ([net(1)], [net(1, kind="Other")], "not profiles of one program"),
        ([run(random.Random(0), began=1)] * 2, [net(1)], "old has a run twice"),
        (
            [net(1)],
            [
                profile_of(
                    {}, {}, provenance=(Provenance(rank=n, pid=n, started_ns=1),)
                )
                for n in range(2)
            ],
            "new has several ranks",
        ),
    ],
    ids=range(6),
)
def test_what_cannot_be_compared_is_refused(old: Runs, new: Runs, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(old, new)


def test_a_program_that_grew_is_the_same_program() -> None:
    old = profile_of({("Net.a", "forward"): timed(5, 5)}, {"Net.a": "A"})
    cells: Cells = {
        ("Net.a", "forward"): timed(5, 5),
        ("Net.b", "forward"): timed(90, 90),
    }
    new = profile_of(cells, {"Net.a": "A", "Net.b": "B"})
    found = compare(old, new)
    assert found.added == (("Net.b", "forward"),)
    assert compare(new, old).gone == (("Net.b", "forward"),)


# Rows


def test_the_shortest_call_counts() -> None:
    times = call_times(net(5000, 100, 100, 70, 900), "module")["Net", "forward"]
    assert times[:4] == (70, 5, 6170, True)


def net_of(is_compiled: bool, up_ns: int) -> Profile:
    """A loop of 10 steps with two layers. Eager, each step calls them twice; compiled,
    it calls code once, of which the shortest call is not known."""

    def layer(ns: int) -> Totals:
        return Totals(10, ns) if is_compiled else timed(*[ns // 20] * 20)

    cells: Cells = {
        ("Net > Net.up", "forward"): layer(up_ns),
        ("Net > Net.down", "forward"): layer(4000),
        ("Net", "forward"): timed(*[200] * 10),
    }
    if is_compiled:
        cells["Net > Net.fused: up + down", "forward"] = Totals(10, 70)
    names = {"Net.up": "Up", "Net.down": "Down", "Net.fused: up + down": FUSED_CLASS}
    return profile_of(cells, {"Net": "Net", **names}, steps=10, part="loop")


def test_modules_in_compiled_code_are_compared_by_their_time_in_a_step() -> None:
    """Eager with compiled, where they were "only before"; and compiled ones."""
    found = compare(net_of(False, 4000), net_of(True, 3000))
    times = {c.name: (c.old_ns, c.new_ns, c.old_calls) for c in found.changes}
    assert times == {
        "Net.up": (400, 300, 10),
        "Net.down": (400, 400, 10),
        "Net": (200, 200, 10),
    }
    assert {c.name for c in found.changes if c.is_mean} == {"Net.up", "Net.down"}
    assert [change.name for change in found.faster] == ["Net.up"]
    assert not found.gone
    assert found.added == (("Net.fused: up + down", "forward"),)
    text = " ".join(str(found).split())
    assert text.endswith("only now: 1 fused kernel")
    assert "too few modules that are compiled on both sides or on none" in text
    assert "in compiled code, of either, the mean of a step" in text
    found = compare(net_of(True, 4000), net_of(True, 3000))
    assert [change.name for change in found.faster] == ["Net.up"]
    assert "mean of a step" not in str(compare(net_of(False, 1), net_of(False, 1)))


def test_compiled_runs_tell_the_speed_of_the_machine() -> None:
    """By their layers; not by what is around these."""

    def compiled(speed: float, slow: float = 1.0) -> Profile:
        times = [4000, 5000, 6000, 7000, 8000, round(9000 * slow)]
        cells: Cells = {
            (f"Net > Net.b > Net.b.up{n}", "forward"): Totals(10, round(ns / speed))
            for n, ns in enumerate(times)
        }
        inner_ns = sum(each.self_ns for each in cells.values())
        cells["Net > Net.b", "forward"] = Totals(10)
        cells["Net", "forward"] = timed(*[inner_ns // 10] * 10)
        names = {f"Net.b.up{n}": f"Up{n}" for n in range(6)}
        return profile_of(cells, {"Net": "N", "Net.b": "B", **names}, 10, part="loop")

    found = compare(compiled(1.0), compiled(1.25, slow=2.0))
    assert found.machine.cause == "machine"
    assert found.machine.change == pytest.approx(-0.2, abs=0.01)
    assert "Net.b.up5" in names(found)
    assert not found.faster


def trained(step_ns: int) -> Profile:
    """A start-up with a long first call, and a loop of 4 steps."""
    first = Part("start-up", steps=1).with_cells({(("Net",), "forward"): timed(10**6)})
    loop = Part(
        "loop",
        4 * step_ns,
        4,
        StepTimes(later=(Bucket(1, 4, 4 * step_ns),)),
        {
            (("Net",), "forward"): timed(7, 7, 7),
            (("(outside modules)",), "outside"): Totals(self_ns=40),
        },
    )
    infos = {"Net": ModuleInfo("Net"), "(outside modules)": ModuleInfo(kind="outside")}
    return Profile(parts=(first, loop), modules=infos)


def test_the_start_up_is_not_compared_and_steps_are() -> None:
    found = compare(trained(50), trained(60))
    times = {(c.name, c.phase): (c.old_ns, c.new_ns) for c in found.changes}
    assert times.keys() == {
        *(("Net", "forward"), ("(outside modules)", "outside"), ("(step)", "")),
    }
    assert times["Net", "forward"] == pytest.approx((7, 7))
    assert times["(outside modules)", "outside"] == pytest.approx((10, 10))
    assert times["(step)", ""] == pytest.approx((50, 60))


def test_waiting_for_data_is_compared_and_what_is_not_called_is_not() -> None:
    cells: Cells = {
        ("Net", "forward"): timed(5, 5, 6),
        ("(data loading)", "data"): timed(5, 5, 6),
        ("(profiler overhead)", "profiler"): timed(5, 5, 6),
    }
    waits = profile_of(cells, {"Net": "Net"})
    found = compare(waits, waits)
    times = {change.name: change.old_ns for change in found.changes}
    assert times == {"Net": 5, "(data loading)": pytest.approx(16 / 3)}


def test_rows_are_grouped_as_asked() -> None:
    timed_ = profile_of(
        {
            key: timed(5, 5)
            for key in (("Net", "forward"), ("Net > relu(8)", "forward"))
        },
        {"Net": "Net"},
    )

    def named(by: Grouping) -> set[str]:
        return {change.name for change in compare(timed_, timed_, by).changes}

    assert named("module") == {"Net"}
    assert "relu" in named("function")
    assert "Net: relu(8)" in named("call")
    with pytest.raises(ValueError, match="functions were not measured in old"):
        compare(net(5), net(5), "function")
    with pytest.raises(ValueError, match=r"by must be 'module', .* not 'layer'"):
        named("layer")  # type: ignore[arg-type]


@given(profiles, profiles)
def test_any_two_profiles(old: Profile, new: Profile) -> None:
    for by in GROUPINGS:  # a profile is as fast as itself
        try:
            same = compare(old, old, by)
        except ValueError as error:
            assert "was called" in str(error) or by == "function"  # noqa: PT017
            continue
        assert not any(change.verdict for change in same.changes)
        assert same.gone == same.added == ()
    try:
        there, back = compare(old, new), compare(new, old)
    except ValueError:
        return
    assert set(there.gone) == set(back.added)
    assert set(there.added) == set(back.gone)
    keys = [{(c.name, c.phase) for c in found.changes} for found in (there, back)]
    assert keys[0] == keys[1]
