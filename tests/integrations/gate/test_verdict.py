"""What is slower, and what is chance."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from torchprof_hooks.integrations.gate.baseline import STEP, Low, Run
from torchprof_hooks.integrations.gate.table import failure
from torchprof_hooks.integrations.gate.verdict import WHOLE, judge

#: Own times of a step, in microseconds.
STEP_TIMES = {
    "Net": 300,
    "Net.conv": 4000,
    "Net.attention": 2500,
    "Net.head": 1500,
    "Net.blocks.0.act": 150,
    "Net.blocks.1.act": 150,
    "Net.blocks.1.drop": 40,
    "(optimizer) SGD": 400,
}
CLASSES = {"Net.blocks.0.act": "GELU", "Net.blocks.1.act": "GELU"}


def run(reference_ns: int = 1_000_000, **times_us: float) -> Run:
    """A run of `STEP_TIMES`, some of whose times are others."""
    times = {**STEP_TIMES, **{n.replace("__", "."): t for n, t in times_us.items()}}
    return in_ns(times, reference_ns)


def in_ns(times_us: Mapping[str, float], reference_ns: int) -> Run:
    rows = {
        name: Low(CLASSES.get(name, "Linear"), {"forward": round(1000 * time_us)})
        for name, time_us in times_us.items()
    }
    return Run(reference_ns, rows)


def names_of_slower(
    old: Sequence[Run], new: Sequence[Run], tolerance: float = 0.05
) -> list[str]:
    return [row.name for row in judge(old, new, tolerance).slower]


def test_what_is_slower_by_more_than_the_tolerance_and_the_step_with_it() -> None:
    old = [run()] * 5
    assert names_of_slower(old, [run(Net__conv=4190)]) == []
    assert names_of_slower(old, [run(Net__conv=4210)]) == ["Net.conv"]
    assert names_of_slower(old, [run(Net__conv=5000)]) == ["Net.conv", WHOLE]
    assert names_of_slower(old, [run(Net__conv=5000)], tolerance=0.3) == []


def test_a_machine_that_is_slower_today_slows_its_reference_as_well() -> None:
    slow = in_ns({name: 1.4 * time for name, time in STEP_TIMES.items()}, 1_400_000)
    assert names_of_slower([run()] * 5, [slow]) == []
    assert names_of_slower([slow] * 5, [run()]) == []


def test_runs_of_the_baseline_that_differ_allow_as_much_again() -> None:
    old = [run(Net__head=time) for time in (1450, 1500, 1550, 1480, 1520)]
    assert names_of_slower(old, [run(Net__head=1645)]) == []
    assert names_of_slower(old, [run(Net__head=1655)]) == ["Net.head"]


def test_it_has_to_be_slower_in_each_new_run() -> None:
    slower = run(Net__head=1800)
    assert names_of_slower([run()] * 5, [slower, slower]) == ["Net.head"]
    assert names_of_slower([run()] * 5, [slower, run(), slower]) == []


def test_what_does_not_matter_to_the_step_is_not_told() -> None:
    """0.4 % of it, however much that is of a small module."""
    assert names_of_slower([run()] * 5, [run(Net=333)]) == []
    assert names_of_slower([run()] * 5, [run(Net=340)]) == ["Net"]


def test_small_layers_of_a_kind_are_looked_at_together() -> None:
    rows = {row.name: row for row in judge([run()] * 5, [run()], 0.05).rows}
    assert rows["Net.blocks.*.act: GELU"].old == pytest.approx(0.3)
    assert not any("drop" in name for name in rows)
    assert rows[WHOLE].old == pytest.approx(sum(STEP_TIMES.values()) / 1000)
    assert "Net.blocks.0.act" not in rows


def test_what_is_no_module_s_is_a_part_of_the_whole_step_alone() -> None:
    old, new = (in_ns({**STEP_TIMES, STEP: t}, 1_000_000) for t in (500, 1000))
    assert names_of_slower([old] * 5, [new]) == [WHOLE]


def test_modules_that_are_new_make_the_step_slower() -> None:
    more = in_ns({**STEP_TIMES, "Net.extra": 900}, 1_000_000)
    found = judge([run()] * 5, [more], 0.05)
    assert (found.added, found.gone) == (("Net.extra",), ())
    assert [row.name for row in found.slower] == [WHOLE]
    found = judge([more] * 5, [run()], 0.05)
    assert (found.added, found.gone, found.slower) == ((), ("Net.extra",), ())


#: How much a row differs from one process to the next, as a share: of modules that
#: compute, that move memory, and of short ones, as recorded on a busy machine.
SPREADS = {
    "Net.conv": 0.02,
    "Net.attention": 0.02,
    "Net.head": 0.015,
    "Net": 0.04,
    "Net.blocks.0.act": 0.05,
    "Net.blocks.1.act": 0.05,
    "(optimizer) SGD": 0.06,
    "Net.blocks.1.drop": 0.1,
}


def noisy(chance: random.Random, noise: float = 1, slower: str = "") -> Run:
    """A process on such a machine: a row differs by chance, sometimes by a lot, and so
    does the speed of the machine.

    noise: of a machine that has less else to do, below 1.
    """
    speed = 1 + 0.3 * chance.random()
    times: dict[str, float] = {}
    for name, time_us in STEP_TIMES.items():
        factor = 1 + noise * SPREADS[name] * chance.gauss(0, 1)
        factor *= 1.5 if chance.random() < 0.01 * noise else 1.0
        factor *= 1.1 if name == slower else 1.0
        times[name] = speed * time_us * factor
    return in_ns(times, round(speed * 1e6 * (1 + 0.01 * noise * chance.gauss(0, 1))))


def is_failed(
    chance: random.Random, old: Sequence[Run], noise: float = 1, slower: str = ""
) -> bool:
    """As `PerformanceGate` decides: what is slower has to be so in three more."""
    runs = [noisy(chance, noise, slower)]
    while names_of_slower(old, runs) and len(runs) <= 3:
        runs.append(noisy(chance, noise, slower))
    return bool(names_of_slower(old, runs))


def test_no_false_alarm_in_thousands_of_runs_on_a_busy_machine() -> None:
    chance = random.Random(0)
    for _ in range(50):
        old = [noisy(chance) for _ in range(5)]
        assert not any(is_failed(chance, old) for _ in range(80))


@pytest.mark.parametrize("name", ["Net.conv", "Net.attention", "Net.head"])
def test_a_tenth_more_of_one_module_is_found_on_a_quieter_one(name: str) -> None:
    chance = random.Random(0)
    found = 0
    for _ in range(100):
        old = [noisy(chance, 0.5) for _ in range(5)]
        found += is_failed(chance, old, 0.5, name)
    assert found >= 95


def test_the_failure_tells_which_by_how_much_and_what_was_allowed() -> None:
    new = in_ns({**STEP_TIMES, "Net.conv": 4600, "Net.extra": 10}, 1_000_000)
    verdict = judge([run()] * 5, [new] * 4, 0.05)
    text = failure(verdict, Path("tests/.torchprof/x.json"), 2_000_000, 4)
    assert text.splitlines()[:8] == [
        "slower than tests/.torchprof/x.json, in each of 4 measurements",
        "",
        "module                    before       now      %  limit",
        "----------------------------------------------------------------",
        "Net.conv                  8.00ms    9.20ms  +15.0   +5.0  slower",
        "(whole step)             18.08ms   19.30ms   +6.7   +5.0  slower",
        "Net.attention             5.00ms    5.00ms   +0.0   +5.0",
        "Net.head                  3.00ms    3.00ms   +0.0   +5.0",
    ]
    assert "only now: Net.extra" in text
    assert "--torchprof-update" in text
