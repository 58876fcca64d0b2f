"""What is slower, and what is chance."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from math import exp
from pathlib import Path
from typing import NamedTuple

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


#: Of a baseline, and of what may be slower.
RUNS = 8


def run(speed: float = 1.0, **times_us: float) -> Run:
    """A run of `STEP_TIMES`, some of whose times are others."""
    times = {**STEP_TIMES, **{n.replace("__", "."): t for n, t in times_us.items()}}
    return in_ns(times, speed)


def in_ns(times_us: Mapping[str, float], arithmetic: float, memory: float = 0.0) -> Run:
    """arithmetic, memory: milliseconds of the reference; the latter as the former."""
    rows = {
        name: Low(CLASSES.get(name, "Linear"), {"forward": round(1000 * time_us)})
        for name, time_us in times_us.items()
    }
    return Run(round(1e6 * arithmetic), round(1e6 * (memory or arithmetic)), rows)


def names_of_slower(
    old: Sequence[Run], new: Sequence[Run], tolerance: float = 0.05
) -> list[str]:
    return [row.name for row in judge(old, new, tolerance, RUNS).slower]


def test_what_is_slower_by_more_than_the_tolerance_and_the_step_with_it() -> None:
    old = [run()] * RUNS
    assert names_of_slower(old, [run(Net__conv=4190)] * RUNS) == []
    assert names_of_slower(old, [run(Net__conv=4210)] * RUNS) == ["Net.conv"]
    assert names_of_slower(old, [run(Net__conv=5000)] * RUNS) == ["Net.conv", WHOLE]
    assert names_of_slower(old, [run(Net__conv=5000)] * RUNS, tolerance=0.3) == []


def test_a_machine_that_is_slower_today_slows_its_reference_as_well() -> None:
    slow = in_ns({name: 1.4 * time for name, time in STEP_TIMES.items()}, 1.4)
    assert names_of_slower([run()] * RUNS, [slow] * RUNS) == []
    assert names_of_slower([slow] * RUNS, [run()] * RUNS) == []


def with_memory(memory: float, name: str, slope: float, factor: float = 1.0) -> Run:
    """Memory takes so much longer, and the row of that name by that to a power."""
    times = {**STEP_TIMES, name: STEP_TIMES[name] * memory**slope * factor}
    return in_ns(times, 1.0, memory)


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0])
def test_memory_that_is_slower_today_slows_what_has_followed_it(slope: float) -> None:
    old = [
        with_memory(1 + 0.02 * place, "Net.attention", slope) for place in range(RUNS)
    ]
    new = [with_memory(1.2, "Net.attention", slope)] * RUNS
    assert names_of_slower(old, new) == []
    more = [with_memory(1.2, "Net.attention", slope, 1.1)] * RUNS
    assert names_of_slower(old, more) == ["Net.attention"]


def test_if_nobody_knows_what_follows_memory_more_is_allowed_where_that_differs() -> (
    None
):
    old, more = [run()] * RUNS, STEP_TIMES["Net.head"] * 1.08
    assert names_of_slower(old, [run(Net__head=more)] * RUNS) == ["Net.head"]
    elsewhere = in_ns({**STEP_TIMES, "Net.head": more}, 1.0, 1.4)
    assert names_of_slower(old, [elsewhere] * RUNS) == []


def test_runs_of_the_baseline_that_differ_allow_more() -> None:
    times = (1400, 1600, 1400, 1600, 1450, 1550, 1450, 1550)
    old = [run(Net__head=time) for time in times]
    assert names_of_slower(old, [run(Net__head=1600)] * RUNS) == []
    assert names_of_slower(old, [run(Net__head=1800)] * RUNS) == ["Net.head"]


def test_what_was_slow_in_a_few_new_runs_alone_is_chance() -> None:
    slower = run(Net__head=1900)
    assert names_of_slower([run()] * RUNS, [slower] * RUNS) == ["Net.head"]
    assert names_of_slower([run()] * RUNS, [slower] * 2 + [run()] * 6) == []


def test_it_stays_open_while_more_runs_may_show_that_something_is_slower() -> None:
    old = [run()] * RUNS
    assert judge(old, [run(Net__head=1550)], 0.05, RUNS).is_open
    assert not judge(old, [run(Net__head=1520)], 0.05, RUNS).is_open
    assert not judge(old, [run(Net__head=1300)], 0.05, RUNS).is_open


def test_what_does_not_matter_to_the_step_is_not_told() -> None:
    """0.4 % of it, however much that is of a small module."""
    assert names_of_slower([run()] * RUNS, [run(Net=333)] * RUNS) == []
    assert names_of_slower([run()] * RUNS, [run(Net=340)] * RUNS) == ["Net"]


def test_small_layers_of_a_kind_are_looked_at_together() -> None:
    rows = {row.name: row for row in judge([run()] * RUNS, [run()], 0.05, RUNS).rows}
    assert rows["Net.blocks.*.act: GELU"].before_ns == pytest.approx(300_000)
    assert not any("drop" in name for name in rows)
    assert rows[WHOLE].before_ns == pytest.approx(1000 * sum(STEP_TIMES.values()))
    assert "Net.blocks.0.act" not in rows


def test_what_is_no_module_s_is_a_part_of_the_whole_step_alone() -> None:
    old, new = (in_ns({**STEP_TIMES, STEP: t}, 1.0) for t in (500, 1000))
    assert names_of_slower([old] * RUNS, [new] * RUNS) == [WHOLE]


def test_modules_that_are_new_make_the_step_slower() -> None:
    more = in_ns({**STEP_TIMES, "Net.extra": 900}, 1.0)
    found = judge([run()] * RUNS, [more] * RUNS, 0.05, RUNS)
    assert (found.added, found.gone) == (("Net.extra",), ())
    assert [row.name for row in found.slower] == [WHOLE]
    found = judge([more] * RUNS, [run()] * RUNS, 0.05, RUNS)
    assert (found.added, found.gone, found.slower) == ((), ("Net.extra",), ())


class Kind(NamedTuple):
    """How a row differs from one process to the next: by chance, as a share, and with
    the time of memory, to that power. As recorded on a busy machine."""

    spread: float
    slope: float


KINDS = {
    "Net.conv": Kind(0.02, 0.0),
    "Net.attention": Kind(0.02, 0.15),
    "Net.head": Kind(0.02, 0.45),
    "Net": Kind(0.03, 0.5),
    "Net.blocks.0.act": Kind(0.047, 0.9),
    "Net.blocks.1.act": Kind(0.047, 0.9),
    "(optimizer) SGD": Kind(0.035, 0.85),
    "Net.blocks.1.drop": Kind(0.1, 0.5),
}


def noisy(chance: random.Random, slower: str = "") -> Run:
    """A process on such a machine: a row differs by chance, sometimes by a lot, and so
    do the speed of the machine, and that of its memory."""
    speed, memory = 1 + 0.3 * chance.random(), exp(chance.gauss(0, 0.1))
    times: dict[str, float] = {}
    for name, time_us in STEP_TIMES.items():
        factor = exp(chance.gauss(0, KINDS[name].spread)) * memory ** KINDS[name].slope
        factor *= 1.1 if chance.random() < 0.01 else 1.0
        factor *= 1.1 if name == slower else 1.0
        times[name] = speed * time_us * factor
    return in_ns(times, speed, speed * memory)


def is_failed(chance: random.Random, old: Sequence[Run], slower: str = "") -> bool:
    """As `PerformanceGate` decides: one run, then new ones while it is open."""
    runs: list[Run] = []
    verdict = judge(old, [noisy(chance, slower)], 0.05, RUNS)
    while verdict.is_open and len(runs) < RUNS:
        runs.append(noisy(chance, slower))
        verdict = judge(old, runs, 0.05, RUNS)
    return bool(verdict.slower)


@pytest.mark.slow
def test_no_false_alarm_in_hundreds_of_runs_on_a_busy_machine() -> None:
    chance = random.Random(0)
    for _ in range(30):
        old = [noisy(chance) for _ in range(RUNS)]
        assert not any(is_failed(chance, old) for _ in range(20))


@pytest.mark.parametrize("name", ["Net.conv", "Net.attention", "Net.head"])
def test_a_tenth_more_of_one_module_is_found(name: str) -> None:
    chance = random.Random(0)
    found = 0
    for _ in range(50):
        old = [noisy(chance) for _ in range(RUNS)]
        found += is_failed(chance, old, name)
    assert found >= 45


def test_the_failure_tells_which_by_how_much_and_what_was_allowed() -> None:
    new = in_ns({**STEP_TIMES, "Net.conv": 4600, "Net.extra": 10}, 1.0)
    verdict = judge([run()] * RUNS, [new] * RUNS, 0.05, RUNS)
    text = failure(verdict, Path("tests/.torchprof/x.json"), RUNS)
    assert text.splitlines()[:8] == [
        "slower than tests/.torchprof/x.json, by the mean of 8 processes",
        "",
        "module                    before       now      %  limit",
        "----------------------------------------------------------------",
        "Net.conv                  4.00ms    4.60ms  +15.0   +5.0  slower",
        "(whole step)              9.04ms    9.65ms   +6.7   +5.0  slower",
        "Net.attention             2.50ms    2.50ms   +0.0   +5.0",
        "Net.head                  1.50ms    1.50ms   +0.0   +5.0",
    ]
    assert "only now: Net.extra" in text
    assert "--torchprof-update" in text
