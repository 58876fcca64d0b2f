"""A profile of all steps from those that were measured."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.helpers import hand_built, own, timed
from torchprof_hooks import Profile
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.measured_steps import MeasuredSteps
from torchprof_hooks.profiles.memory import MemoryTotals
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import BACKWARD_PHASES, MODULE_PHASES, kind_of_other
from torchprof_hooks.profiles.parts import Part
from torchprof_hooks.profiles.scaling import of_all_steps
from torchprof_hooks.profiles.totals import Totals

NOTHING = ProfileData()
BACKWARD, ENGINE = "(backward outside modules)", "(autograd engine)"
OUTSIDE, PROFILER, SGD = "(outside modules)", "(profiler overhead)", "(optimizer) SGD"
UNKNOWN = "(not measured)"


def of(cells: dict[tuple[str, Any], Totals], **facts: Any) -> Profile:
    """A profile of such cells; names that begin with an N are modules."""
    names = dict.fromkeys(name for path, _ in cells for name in path.split(" > "))
    infos: dict[str, ModuleInfo | str] = {
        name: ModuleInfo(kind=kind_of_other(name)) if name[0] == "(" else name
        for name in names
        if name[0] in "(N"
    }
    return hand_built(cells, infos, **facts)


def scaled(
    off: ProfileData = NOTHING, on: ProfileData = NOTHING, **others: Any
) -> dict[tuple[str, str], Totals]:
    """The cells of all steps, by paths as they are written above."""
    found = of_all_steps(off, on, **others)
    assert {name for path, _ in found.cells for name in path} == set(found.modules)
    return {(" > ".join(path), phase): t for (path, phase), t in found.cells.items()}


def times(cells: dict[tuple[str, str], Totals]) -> dict[tuple[str, str], int]:
    return {key: totals.self_ns for key, totals in cells.items() if totals.self_ns}


# Two kinds of steps


#: Three steps, of which nothing but the parts was measured, and one with modules.
OFF = of(
    {
        ("Net", "forward"): own(300, 3),
        (BACKWARD, "backward"): own(630, 3),
        (SGD, "optimizer"): own(30, 3),
        (OUTSIDE, "outside"): own(40, 0),
    }
)
ON = of(
    {
        ("Net", "forward"): own(20),
        ("Net > Net.a", "forward"): own(30, 2),
        ("Net > Net.b", "forward"): own(60),
        (BACKWARD, "backward"): own(10),
        ("Net", "backward"): own(0),
        ("Net > Net.a", "backward"): own(80, 2),
        ("Net > Net.a", "recompute"): own(90, 2),
        (ENGINE, "backward"): own(30, 0),
        (SGD, "optimizer"): own(12),
        (OUTSIDE, "outside"): own(5, 0),
    }
)


def numbers(cells: dict[tuple[str, str], Totals]) -> dict[tuple[str, str], Any]:
    return {key: (totals.calls, totals.self_ns) for key, totals in cells.items()}


def test_the_inside_of_a_part_is_divided_as_it_was_measured() -> None:
    # Calls are as many times those that were measured as the part has.
    assert numbers(scaled(OFF, ON)) == {
        # 300 + 110 ns, of which 2, 3 and 6 elevenths
        ("Net", "forward"): (4, 75),
        ("Net > Net.a", "forward"): (8, 112),
        ("Net > Net.b", "forward"): (4, 410 - 75 - 112),
        # 630 + 210
        (BACKWARD, "backward"): (4, 40),
        ("Net", "backward"): (4, 0),
        ("Net > Net.a", "backward"): (8, 320),
        ("Net > Net.a", "recompute"): (8, 360),
        (ENGINE, "backward"): (0, 120),
        (SGD, "optimizer"): (4, 42),
        (OUTSIDE, "outside"): (0, 45),
    }


def test_parts_in_profiled_functions_have_calls_of_their_own() -> None:
    def steps(count: int, backward: str) -> Profile:
        return of(
            {
                ("Ntrain", "forward"): own(100 * count, count),
                (f"Ntrain > {SGD}", "optimizer"): own(20 * count, 2 * count),
                (f"Ntrain > {BACKWARD}", "backward"): own(10 * count, 2 * count),
                (backward, "backward"): own(30 * count, 2 * count),
            }
        )

    found = scaled(steps(3, f"Ntrain > {ENGINE}"), steps(1, "Ntrain > Net"))
    assert numbers(found) == {
        ("Ntrain", "forward"): (4, 400),
        (f"Ntrain > {SGD}", "optimizer"): (8, 80),
        (f"Ntrain > {BACKWARD}", "backward"): (8, 40),
        ("Ntrain > Net", "backward"): (8, 120),
    }


def test_parts_never_measured_inside_keep_their_calls() -> None:
    other = of(
        {
            ("Nother", "forward"): own(70, 7),
            (BACKWARD, "backward"): own(50, 7),
            (ENGINE, "backward"): own(20, 0),
            (f"Nother > {SGD}", "optimizer"): own(3, 7),
        }
    )
    found = scaled(other)
    assert {key: each for key, each in numbers(found).items() if any(each)} == {
        ("Nother", "forward"): (7, 0),
        (f"Nother > {UNKNOWN}", "forward"): (0, 70),
        (BACKWARD, "backward"): (7, 0),
        (UNKNOWN, "backward"): (0, 70),
        (f"Nother > {SGD}", "optimizer"): (7, 3),
    }
    # What else was measured changes nothing of that.
    both = scaled(other, of({("Net", "forward"): own(4)}))
    assert both == {**found, ("Net", "forward"): own(4)}


def test_a_part_without_any_time_is_as_it_was_measured() -> None:
    cells = {("Nidle", "forward"): own(0, 6), ("Nidle > relu()", "forward"): own(0, 2)}
    found = scaled(OFF, ON.merge(of(cells)))
    assert found == {**scaled(OFF, ON), **cells}


def test_what_calls_were_like_stays() -> None:
    memory = MemoryTotals(100, 50, -8, 70)
    inner = replace(timed(10, 20), flops=7, device_self_ns=90, memory=memory)
    on = of({("Net", "forward"): own(0), ("Net > Net.a", "forward"): inner})
    off = of({("Net", "forward"): own(210, 2)})
    found = scaled(off, on)["Net > Net.a", "forward"]
    assert (found.calls, found.self_ns, found.duration_ns) == (6, 240, 240)
    assert (found.min_ns, found.max_ns) == (10, 20)
    assert found.std_ns / found.mean_ns == pytest.approx(1 / 3, rel=1e-3)
    assert found.flops == 21
    assert found.memory == MemoryTotals(300, 150, -24, 70)
    assert found.device_self_ns == 720  # as the host's


def test_what_the_profiler_took_between_steps_is_its_own() -> None:
    found = scaled(OFF, ON.merge(of({(PROFILER, "profiler"): own(9, 0)})), aside_ns=33)
    assert found[PROFILER, "profiler"] == own(42, 0)
    assert sum(times(found).values()) == OFF.wall_ns + ON.wall_ns + 9 + 33


def test_time_after_backward_is_some_of_that_outside_modules() -> None:
    after = "(outside modules, after backward)", "outside"
    for asked_ns, expected_ns in (0, 0), (44, 44), (999, 45):
        found = times(scaled(OFF, ON, after_backward_ns=asked_ns))
        assert found.get(after, 0) == expected_ns
        assert found.get((OUTSIDE, "outside"), 0) == 45 - expected_ns


def test_the_start_up_is_as_it_was_measured() -> None:
    first = Part("start-up", steps=1).with_cells({(("Net",), "forward"): own(5)})
    on = replace(ON, parts=(first, *ON.parts))
    found = of_all_steps(OFF, on, aside_ns=7)
    start_up, loop = found.parts
    assert start_up == first
    assert loop == of_all_steps(OFF, ON, aside_ns=7).parts[0]
    assert found.wall_ns == on.wall_ns + OFF.wall_ns + 7


# Functions


def test_functions_are_a_part_of_what_calls_them() -> None:
    on = of(
        {
            ("Net", "forward"): own(10),
            ("Net > relu()", "forward"): replace(own(30, 2), flops=4),
            ("Net > relu() > neg()", "forward"): own(8, 2),
            ("Net > Net.a", "forward"): own(1),
            ("Net > Net.a > linear()", "forward"): own(2),
        }
    )
    found = scaled(of({("Net", "forward"): own(306, 6)}), on)
    assert numbers(found) == {  # 306 + 51
        ("Net", "forward"): (7, 70),
        ("Net > relu()", "forward"): (14, 210),
        ("Net > relu() > neg()", "forward"): (14, 56),
        ("Net > Net.a", "forward"): (7, 7),
        ("Net > Net.a > linear()", "forward"): (7, 14),
    }
    assert found["Net > relu()", "forward"].flops == 28


@pytest.mark.parametrize(
    ("other_ns", "ones", "rest_ns"),
    [
        (50, own(60, 3, 24, MemoryTotals(192)), 15),
        # A step that saves, say: they were not called more often for that.
        (5000, own(60, 3, 24, MemoryTotals(192)), 4965),
        (10, own(35, 3, 14, MemoryTotals(192)), 0),  # there is no more time
    ],
)
def test_functions_outside_modules_are_those_of_all_steps(
    other_ns: int, ones: Totals, rest_ns: int
) -> None:
    on = of(
        {
            ("ones()", "forward"): own(20, 1, 8, MemoryTotals(64)),
            (OUTSIDE, "outside"): own(5, 0),
        }
    )
    off = of({(OUTSIDE, "outside"): own(other_ns, 0)})
    found = scaled(off, on, steps=MeasuredSteps(3, 1))
    assert found["ones()", "forward"] == ones
    assert found[OUTSIDE, "outside"] == own(rest_ns, 0)


# Any program


class Program:
    """A random one, by a generator of its own."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.modules = ["Net", "Nother"]
        for number in range(self.random.randrange(6)):
            around = self.random.choice(self.modules)
            self.modules.append(f"{around} > N.{number}")
        around = self.random.choice(self.modules)
        outer = self.random.choice(["", "Net > "])
        self.functions = [f"{around} > relu()", f"{around} > neg()", f"{outer}mm()"]

    def off(self) -> Profile:
        return self._profile([("Net", "forward"), ("Nother", "forward")])

    def on(self, functions: bool) -> Profile:
        paths = [*self.modules, *(self.functions if functions else ())]
        return self._profile([(p, phase) for p in paths for phase in MODULE_PHASES])

    def _profile(self, inside: list[tuple[str, Any]]) -> Profile:
        """Some of these are lacking; now and then, all of it is."""
        random, others = self.random, ((BACKWARD, "backward"), (ENGINE, "backward"))
        keys = [*inside, *others, (SGD, "optimizer"), (PROFILER, "profiler")]
        kept = {key: self._totals() for key in keys if random.random() < 0.8}
        kept[OUTSIDE, "outside"] = own(random.randrange(10**6), 0)
        return of(kept) if random.random() < 0.8 else Profile()

    def _totals(self) -> Totals:
        draw = self.random.randrange
        bytes_ = MemoryTotals(*(draw(999) for _ in range(4)))
        found = own(draw(10 ** draw(1, 9)), draw(1, 50), draw(999), bytes_)
        return replace(
            found, duration_ns=draw(999), squares_ns2=draw(999), flops=draw(99)
        )


SEEDS = range(200)


def by_part(*every: ProfileData) -> Counter[tuple[str, str]]:
    """What outermost modules, and what is none, took in all of these."""
    found: Counter[tuple[str, str]] = Counter()
    for profile in every:
        for (path, phase), totals in profile.cells.items():
            is_function = profile.modules[path[0]].kind == "function"
            part = (OUTSIDE, "outside") if is_function else (path[0], phase)
            is_backward = phase in BACKWARD_PHASES
            found[(BACKWARD, "backward") if is_backward else part] += totals.self_ns
    return +found


@pytest.mark.parametrize("functions", [False, True])
def test_own_times_add_up_to_the_nanosecond_in_each_part(functions: bool) -> None:
    for seed in SEEDS:
        program = Program(seed)
        off, on = program.off(), program.on(functions)
        found = of_all_steps(off, on, steps=MeasuredSteps(7, 2))
        assert found.wall_ns == off.wall_ns + on.wall_ns, seed
        assert by_part(found) == by_part(off, on), seed
        assert all(t.self_ns >= 0 and t.calls >= 0 for t in found.cells.values()), seed
        # Nothing is scaled if all steps were measured.
        assert of_all_steps(NOTHING, on).cells == on.cells, seed


def test_the_order_in_which_profiles_are_merged_does_not_matter() -> None:
    for seed in SEEDS[:40]:
        program = Program(seed)
        one, other, third = (
            of_all_steps(program.off(), program.on(functions=True)) for _ in range(3)
        )
        assert one.merge(other) == other.merge(one)
        assert one.merge(other).merge(third) == one.merge(other.merge(third))


def test_all_else_is_that_of_both() -> None:
    off = replace(OFF, aborted_calls=2, items=3, devices=("cuda",))
    on = replace(ON, items=4, overhead_ns=5, measured=MeasuredSteps(4, 1))
    found, both = of_all_steps(off, on), on.merge(off)
    assert replace(found, parts=(), modules={}) == replace(both, parts=(), modules={})
