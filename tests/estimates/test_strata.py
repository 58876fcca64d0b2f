"""Steps looked at more and less closely, and what they tell of all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.profile_of import profile_of, with_fields
from torchprof_hooks.capture.record.step_counter import StepCounter
from torchprof_hooks.capture.sampling.estimates.pattern import scaled
from torchprof_hooks.capture.sampling.estimates.program import (
    measured_steps,
    program_profile,
)
from torchprof_hooks.capture.sampling.estimates.strata import Strata
from torchprof_hooks.capture.sampling.estimates.stratum import Stratum
from torchprof_hooks.capture.sampling.estimates.unseen_steps import imagined
from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.memory import MemoryTotals
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import (
    BACKWARD_NAME,
    COMPILING_NAME,
    OUTSIDE_NAME,
    UNSAMPLED_NAME,
    Grouping,
    Phase,
)
from torchprof_hooks.profiles.program import MeasuredSteps
from torchprof_hooks.profiles.totals import Totals

INFOS = {
    "Net": ModuleInfo("Net"),
    "Net.fc": ModuleInfo("Linear"),
    "linear(2x2)": ModuleInfo("linear", kind="function"),
    "loss(2)": ModuleInfo("loss", kind="function"),
    "(optimizer) SGD": ModuleInfo(kind="optimizer"),
    OUTSIDE_NAME: ModuleInfo(kind="outside"),
    BACKWARD_NAME: ModuleInfo(kind="backward"),
}


def stratum(steps: int, cells: dict[tuple[tuple[str, ...], Phase], Totals]) -> Stratum:
    return Stratum(
        profile_of(cells, INFOS, sum(t.self_ns for t in cells.values()), steps), steps
    )


def calls(count: int, self_ns: int) -> Totals:
    most_ns = self_ns if count else 0
    return Totals(calls=count, self_ns=self_ns, max_ns=most_ns, duration_ns=most_ns)


#: 8 steps as a whole, 2 in modules, 1 in functions; forward takes 100 in each, backward
#: 200, the optimizer 50, the rest 10.
PHASES = stratum(
    8,
    {
        (("Net",), "forward"): calls(8, 800),
        ((BACKWARD_NAME,), "backward"): calls(8, 1600),
        (("(optimizer) SGD",), "optimizer"): calls(8, 400),
        ((OUTSIDE_NAME,), "outside"): calls(0, 80),
    },
)
MODULES = stratum(
    2,
    {
        (("Net",), "forward"): calls(2, 40),
        (("Net", "Net.fc"), "forward"): calls(4, 160),
        (("Net",), "backward"): calls(2, 100),
        (("Net", "Net.fc"), "backward"): calls(4, 280),
        ((BACKWARD_NAME,), "backward"): calls(2, 20),
        (("(optimizer) SGD",), "optimizer"): calls(2, 100),
        ((OUTSIDE_NAME,), "outside"): calls(0, 20),
    },
)
FUNCTIONS = stratum(
    1,
    {
        (("Net",), "forward"): calls(1, 10),
        (("Net", "Net.fc"), "forward"): calls(2, 20),
        (("Net", "Net.fc", "linear(2x2)"), "forward"): calls(2, 90),
        (("loss(2)",), "forward"): calls(1, 5),
        (("Net", "Net.fc", "linear(2x2)"), "backward"): calls(2, 200),
        ((BACKWARD_NAME,), "backward"): calls(1, 0),
        (("(optimizer) SGD",), "optimizer"): calls(1, 50),
        ((OUTSIDE_NAME,), "outside"): calls(0, 5),
    },
)
WARM_UP = stratum(1, {(("Net",), "forward"): calls(1, 1000)})
STRATA = Strata(WARM_UP, PHASES, MODULES, FUNCTIONS)


def own_sum(profile: ProfileData) -> int:
    return sum(totals.self_ns for totals in profile.cells.values())


def by_name(
    profile: ProfileData, by: Grouping, phase: Phase
) -> dict[str, tuple[int, int]]:
    """Calls and own time of the rows that have any."""
    rows = {row.name: row.phases.get(phase, Totals()) for row in profile.rows(by)}
    return {n: (t.calls, t.self_ns) for n, t in rows.items() if t.calls or t.self_ns}


def test_the_profile_of_a_program_has_modules_and_functions() -> None:
    """Times of modules are those of steps in which modules were measured; functions
    divide them as in the steps in which functions were."""
    found = program_profile(STRATA)
    start_up, _ = found.parts
    assert [part.name for part in found.parts] == ["start-up", "loop"]
    assert start_up.cells == WARM_UP.profile.cells
    of_modules = STRATA.estimate(of_functions=False, warm_up=False)
    for phase in ("forward", "backward", "optimizer", "outside"):
        rows = by_name(found.loop, "module", phase)
        wanted = by_name(of_modules, "module", phase)
        assert rows == wanted
    linear = by_name(found.loop, "function", "forward")["linear"]
    assert linear == (22, 824)  # of 896: 990 of the 990 + 87 that fc takes there
    assert found.wall_ns == own_sum(found) == pytest.approx(4980, abs=5)
    assert found.steps == 12
    assert measured_steps(STRATA) == MeasuredSteps(12, 12, 4, 2)


def test_operations_of_all_steps_are_an_estimate() -> None:
    """100 in forward and 200 in backward, in a step that was measured, of 11."""
    linear = ("Net", "Net.fc", "linear(2x2)")
    cells = dict(FUNCTIONS.profile.cells)
    for phase, flops in (("forward", 100), ("backward", 200)):
        key: CellKey = linear, phase  # type: ignore[assignment]
        cells[key] = replace(cells[key], flops=flops)
    strata = Strata(WARM_UP, PHASES, MODULES, stratum(1, cells))
    loop = program_profile(strata).loop
    assert sum(totals.flops for totals in loop.cells.values()) == 11 * 300


def test_calls_that_took_no_time_are_counted() -> None:
    """Measuring took all of it, as far as is known."""
    fc = ("Net", "Net.fc")
    costly = {
        key: replace(t, overhead_ns=t.self_ns) if key[0][:2] == fc else t
        for key, t in FUNCTIONS.profile.cells.items()
    }
    strata = Strata(WARM_UP, PHASES, MODULES, stratum(1, costly))
    found = program_profile(strata).loop.cells
    linear = found[(*fc, "linear(2x2)"), "forward"]
    assert (linear.calls, linear.self_ns) == (22, 0)
    of_modules = strata.estimate(of_functions=False, warm_up=False).cells
    assert found[fc, "forward"].self_ns == of_modules[fc, "forward"].self_ns > 0


def test_memory_of_modules_is_that_of_steps_in_which_modules_were_measured() -> None:
    """Functions have what they took where they were measured: here, more."""
    fc = ("Net", "Net.fc")
    cells = {**MODULES.profile.cells}, {**FUNCTIONS.profile.cells}
    keys: tuple[CellKey, ...] = (fc, "forward"), ((*fc, "linear(2x2)"), "forward")
    for some, key, each in zip(cells, keys, (2 * 100, 110), strict=True):
        some[key] = replace(some[key], memory=MemoryTotals(each, each, each, 60))
    strata = Strata(WARM_UP, PHASES, stratum(2, cells[0]), stratum(1, cells[1]))
    found = program_profile(strata).loop
    assert found.cells[keys[1]].memory == MemoryTotals(1210, 1210, 1210, 60)
    rows = {row.name: row for row in found.rows("module")}
    inside = rows["Net.fc"].phases["forward"].memory_cumulative
    assert inside == MemoryTotals(1100, 1100, 1100, 60)


def with_order(stratum: Stratum, *names: str) -> Stratum:
    """The same steps, in which these names were called first, in this order."""
    infos = {n: replace(INFOS[n], order=order) for order, n in enumerate(names)}
    modules = {**stratum.profile.modules, **infos}
    return stratum._replace(profile=replace(stratum.profile, modules=modules))


@pytest.mark.parametrize("first", [("loss(2)", "Net"), ("Net", "loss(2)"), ("Net",)])
def test_calls_are_in_the_order_of_the_first_step(first: tuple[str, ...]) -> None:
    """Functions were measured in it; where only modules were, these seem to come first;
    and other steps may begin anywhere in a round of several optimizers. What is called
    later comes later."""
    known = {name: INFOS[name] for name in first}
    warm_up = WARM_UP._replace(profile=replace(WARM_UP.profile, modules=known))
    strata = Strata(
        with_order(warm_up, *first),
        with_order(PHASES, "Net"),
        with_order(MODULES, "Net", "Net.fc"),
        with_order(FUNCTIONS, "loss(2)", "Net", "Net.fc", "linear(2x2)"),
    )
    nodes = program_profile(strata).tree(functions=True).children
    names = [node.name for node in nodes][:2]
    assert names == [*dict.fromkeys((*first, "loss(2)"))]


def test_without_a_later_step_all_is_one_part() -> None:
    [part] = program_profile(Strata(WARM_UP)).parts
    assert (part.name, part.wall_ns) == ("loop", 1000)


def test_the_whole_is_what_was_measured() -> None:
    whole = STRATA.whole
    assert whole.wall_ns == own_sum(whole) == 1000 + 2880 + 720 + 380
    assert whole.steps == STRATA.steps == 12
    net = {path: t for (path, phase), t in whole.cells.items() if phase == "forward"}
    assert net["Net",].calls == 12
    assert net["Net",].self_ns == 1000 + 40 + 10
    assert net["Net", UNSAMPLED_NAME].self_ns == 800
    assert net["Net", UNSAMPLED_NAME].calls == 0
    assert whole.cells[(UNSAMPLED_NAME,), "backward"].self_ns == 1600
    passes = whole.cells[(BACKWARD_NAME,), "backward"]
    assert (passes.calls, passes.self_ns) == (11, 20)


@pytest.mark.parametrize("of_functions", [False, True])
def test_estimates_are_without_what_measuring_took(of_functions: bool) -> None:
    """Where steps are short, and all are looked into, it would make phases longer."""
    cells = dict(MODULES.profile.cells)
    inner: CellKey = ("Net", "Net.fc"), "forward"
    cells[inner] = replace(cells[inner], overhead_ns=60)
    strata = Strata(WARM_UP, modules=stratum(2, cells), functions=FUNCTIONS)
    profile = replace(strata.modules.profile, overhead_ns=60)
    strata = replace(strata, modules=strata.modules._replace(profile=profile))
    assert strata.overhead_ns == 60
    estimate = strata.estimate(of_functions=of_functions)
    times = estimate.phase_times_ns()
    assert times["profiler"] == 60
    # The first step, two of modules, one of functions; its loss is in no module.
    assert times["forward"] == 1000 + 200 - 60 + 120
    assert estimate.wall_ns == own_sum(estimate) == strata.whole.wall_ns


@pytest.mark.parametrize("of_functions", [False, True])
def test_estimates_add_up_to_the_time_of_all_steps(of_functions: bool) -> None:
    estimate = STRATA.estimate(of_functions=of_functions)
    assert estimate.wall_ns == own_sum(estimate)
    assert estimate.wall_ns == pytest.approx(STRATA.whole.wall_ns, abs=5)
    assert estimate.steps == 12
    without = STRATA.estimate(of_functions=of_functions, warm_up=False)
    assert without.wall_ns == pytest.approx(estimate.wall_ns - 1000, abs=5)


def test_modules_of_all_steps() -> None:
    estimate = STRATA.estimate(of_functions=False, warm_up=False)
    # forward of 11 steps: 800 + 200 + 120, divided 1 to 4
    assert by_name(estimate, "module", "forward") == {
        "Net": (11, 224),
        "Net.fc": (22, 896),
    }
    # backward: 1600 + 400 + 200, divided 5 to 14 to 1; calls in proportion to steps
    backward = by_name(estimate, "module", "backward")
    assert backward["Net"] == (11, 550)
    assert backward["Net.fc"] == (22, 1540)
    assert by_name(estimate, "module", "optimizer") == {"(optimizer) SGD": (11, 550)}
    assert by_name(estimate, "module", "outside") == {OUTSIDE_NAME: (0, 110)}


def test_functions_of_all_steps() -> None:
    estimate = STRATA.estimate(of_functions=True, warm_up=False)
    functions = by_name(estimate, "function", "forward")
    assert functions["linear"] == (22, 990)  # 90 in each step; 130 are left for modules
    assert functions["loss"] == (11, 55)  # of 110: 5 of 10
    assert by_name(estimate, "function", "backward")["linear"] == (22, 2200)


def test_without_close_steps_nothing_is_divided() -> None:
    estimate = Strata(phases=PHASES).estimate(of_functions=False)
    assert by_name(estimate, "module", "forward") == {
        "Net": (8, 0),
        UNSAMPLED_NAME: (0, 800),
    }
    assert own_sum(estimate) == 2880


def test_what_functions_were_seen_in_alone_is_not_lost() -> None:
    other: dict[tuple[tuple[str, ...], Phase], Totals] = {
        (("Other",), "forward"): calls(1, 7)
    }
    infos = {**INFOS, "Other": ModuleInfo("Other")}
    functions = Stratum(
        FUNCTIONS.profile.merge(profile_of(other, infos, 7)), FUNCTIONS.steps
    )
    estimate = Strata(phases=PHASES, modules=MODULES, functions=functions).estimate(
        of_functions=False
    )
    assert by_name(estimate, "module", "forward")["Other"] == (1, 7)


def test_all_steps_looked_at_are_as_they_were() -> None:
    estimate = Strata(modules=MODULES).estimate(of_functions=False)
    assert dict(estimate.cells) == dict(MODULES.profile.cells)


def test_how_many_were_looked_at() -> None:
    assert STRATA.looked_at(of_functions=False) == 4
    assert STRATA.looked_at(of_functions=True) == 2


def test_no_steps_at_all() -> None:
    empty = Strata()
    assert empty.whole.is_empty
    assert empty.estimate(of_functions=True).is_empty


def test_disturbed_steps_are_in_the_whole_alone() -> None:
    strata = Strata(modules=MODULES, disturbed=PHASES)
    assert strata.whole.wall_ns == 720 + 2880
    assert strata.estimate(of_functions=False).wall_ns == 720


@pytest.mark.parametrize("of_functions", [False, True])
def test_estimates_add_up_to_the_nanosecond(of_functions: bool) -> None:
    """Whatever is lost by rounding."""
    odd = stratum(
        7,
        {
            (("Net",), "forward"): calls(7, 701),
            ((BACKWARD_NAME,), "backward"): calls(7, 1301),
            (("(optimizer) SGD",), "optimizer"): calls(7, 401),
            ((OUTSIDE_NAME,), "outside"): calls(0, 83),
        },
    )
    strata = Strata(phases=odd, modules=MODULES, functions=FUNCTIONS)
    found = strata.estimate(of_functions=of_functions)
    assert found.wall_ns == strata.whole.wall_ns
    assert sum(totals.self_ns for totals in found.cells.values()) == found.wall_ns


def test_rounding_takes_no_cell_below_zero() -> None:
    """Of 15 ns for ten cells, each has 1.5: if all are rounded up, 5 ns are missing."""
    names = ["Net", *(f"Net.{place}" for place in range(9))]
    paths = [("Net",), *(("Net", name) for name in names[1:])]
    infos = {**INFOS, **{name: ModuleInfo("Net") for name in names}}
    seen = profile_of({(path, "forward"): calls(1, 1) for path in paths}, infos, 10)
    strata = Strata(
        phases=stratum(1, {(("Net",), "forward"): calls(1, 5)}),
        modules=Stratum(seen, 1),
    )
    found = strata.estimate(of_functions=False)
    assert found.wall_ns == own_sum(found) == 15
    assert {totals.self_ns for totals in found.cells.values()} == {1, 2}


def evaluating(steps: int, evaluations: int, overhead_ns: int) -> Stratum:
    """Training steps of 10 us: 2 in forward, 6 in backward; evaluations of 2 us in
    forward. In each call, measuring takes so long besides."""
    both = steps + evaluations
    forward_ns, step_ns = 2000 + overhead_ns, 10_000 + overhead_ns
    cells: dict[CellKey, Totals] = {
        (("Net",), "forward"): Totals(
            both, both * forward_ns, overhead_ns=both * overhead_ns
        ),
        (("Net",), "backward"): calls(steps, 6000 * steps),
        ((OUTSIDE_NAME,), "outside"): calls(0, 2000 * steps),
    }
    counter = StepCounter()
    for _ in range(steps):
        counter.count(step_ns, is_first=False)
    counter.evaluation(evaluations * forward_ns, evaluations)
    seen = stratum(both, cells)
    return seen._replace(
        profile=with_fields(seen.profile, step_times=counter.times(), steps=steps)
    )


@pytest.mark.parametrize("overhead_ns", [0, 500, 3000])
def test_measuring_takes_most_of_many_short_evaluations(overhead_ns: int) -> None:
    counted = evaluating(40, 400, 0).profile
    seen = evaluating(10, 100, overhead_ns).profile
    found = imagined(Stratum(with_fields(counted, cells={})), seen)
    assert found.wall_ns == own_sum(found) == 40 * 10_000 + 400 * 2000
    for key, totals in found.cells.items():
        expected = counted.cells[key]
        assert totals.self_ns == pytest.approx(expected.self_ns, rel=0.001)
        assert totals.calls == expected.calls


def short_calls(steps: int, calls_each: int, overhead_ns: int = 0) -> Stratum:
    """Training steps of so many calls, each of ten nodes, 20 us in forward, 60 in
    backward and 50 outside; measuring takes so long outside of them besides, of which
    it knows half."""
    count = steps * calls_each
    cells: dict[CellKey, Totals] = {
        (("Net",), "forward"): calls(count, count * 20_000),
        ((BACKWARD_NAME,), "backward"): calls(steps, count * 60_000),
        ((OUTSIDE_NAME,), "outside"): Totals(
            self_ns=count * (50_000 + overhead_ns), overhead_ns=count * overhead_ns // 2
        ),
    }
    counter = StepCounter()
    for _ in range(steps):
        counter.count(calls_each * (130_000 + overhead_ns), is_first=False)
    found = stratum(steps, cells)
    profile = with_fields(found.profile, step_times=counter.times(), steps=steps)
    return found._replace(profile=profile, nodes=10 * count)


def only_counted(steps: Stratum) -> Stratum:
    cells: dict[CellKey, Totals] = {
        ((OUTSIDE_NAME,), "outside"): Totals(self_ns=steps.profile.wall_ns)
    }
    return steps._replace(profile=with_fields(steps.profile, cells=cells))


@pytest.mark.parametrize("calls_each", [10, 50])  # five times as long as those seen
@pytest.mark.parametrize("overhead_ns", [0, 40_000])
def test_short_calls_are_estimated_by_nodes(calls_each: int, overhead_ns: int) -> None:
    counted = short_calls(30, calls_each)
    strata = Strata(modules=short_calls(2, 10, overhead_ns))
    found = replace(strata, counted=only_counted(counted)).estimate(of_functions=False)
    count = 20 + 30 * calls_each
    assert found.phase_times_ns() == {
        "forward": count * 20_000,
        "backward": count * 60_000,
        "outside": count * 50_000 + 20 * overhead_ns // 2,
        **({"profiler": 20 * overhead_ns // 2} if overhead_ns else {}),
    }
    assert found.cells[("Net",), "forward"].calls == count
    wall_ns = strata.modules.profile.wall_ns + counted.profile.wall_ns
    assert found.wall_ns == own_sum(found) == wall_ns


@pytest.mark.parametrize(
    ("slower", "factor"), [(0.8, 0.8), (1.25, 1.25), (3.0, 1.0), (0.2, 1.0)]
)
def test_all_steps_may_be_slower_than_those_around_the_seen_ones(
    slower: float, factor: float
) -> None:
    """As measured in steps that were not looked into, just before these. It is no speed
    of the machine that is several times another one."""
    counted, seen = short_calls(30, 10), short_calls(2, 10)
    unseen_ns = round(20 * 130_000 / slower)
    strata = Strata(
        modules=seen._replace(unseen_ns=unseen_ns), counted=only_counted(counted)
    )
    found = strata.estimate(of_functions=False)
    times = found.phase_times_ns()
    assert times["forward"] == pytest.approx((20 + factor * 300) * 20_000, rel=1e-6)
    assert times["backward"] == pytest.approx((20 + factor * 300) * 60_000, rel=1e-6)
    assert found.cells[("Net",), "forward"].calls == 320
    assert found.wall_ns == own_sum(found) == 320 * 130_000


def test_what_comes_without_nodes_is_not_looked_into() -> None:
    counted = short_calls(30, 10)
    times = StepCounter()
    for _ in range(30):
        times.count(1_300_000 + 10_000_000, is_first=False)
    wall_ns = counted.profile.wall_ns + 300_000_000
    profile = with_fields(counted.profile, wall_ns=wall_ns, step_times=times.times())
    strata = Strata(
        modules=short_calls(2, 10),
        counted=only_counted(counted._replace(profile=profile)),
    )
    found = strata.estimate(of_functions=False).phase_times_ns()
    rows = strata.estimate(of_functions=False).rows()
    [unseen] = [row.self_ns for row in rows if row.name == UNSAMPLED_NAME]
    assert found["forward"] == 320 * 20_000
    # Outside, up to twice as much as in steps that were seen.
    assert unseen == 300_000_000 - 300 * 50_000


@pytest.mark.parametrize(
    "times", [10, 1000], ids=["the machine was slower", "long calls"]
)
def test_steps_are_estimated_by_their_durations_else(times: int) -> None:
    """Where nodes do not tell: steps of as many nodes that took less, or whose time is
    in the work of functions."""
    seen = short_calls(2, 10)
    cells = {
        key: replace(t, self_ns=times * t.self_ns)
        for key, t in seen.profile.cells.items()
    }
    durations = StepCounter()
    durations.count(times * seen.profile.wall_ns, 2, is_first=False)
    slow = with_fields(
        seen.profile,
        cells=cells,
        wall_ns=times * seen.profile.wall_ns,
        step_times=durations.times(),
    )
    counted = short_calls(30, 10)
    strata = Strata(modules=seen._replace(profile=slow), counted=only_counted(counted))
    found = strata.estimate(of_functions=False).phase_times_ns()
    count = times * 20 + 300
    assert found == {
        "forward": count * 20_000,
        "backward": count * 60_000,
        "outside": count * 50_000,
    }


def seen_with(
    seen: ProfileData, key: CellKey, extra_ns: int, of_evaluations_ns: int = 0
) -> ProfileData:
    """The same where something else took so long, of it so much in evaluations."""
    cells = dict(seen.cells)
    known = cells.get(key, Totals())
    cells[key] = replace(known, self_ns=known.self_ns + extra_ns)
    times = seen.step_times
    times = times._replace(evaluation_ns=times.evaluation_ns + of_evaluations_ns)
    infos = {**seen.modules, COMPILING_NAME: ModuleInfo(kind="compiling")}
    wall_ns = seen.wall_ns + extra_ns
    found = with_fields(seen, cells=cells, wall_ns=wall_ns, step_times=times)
    return replace(found, modules=infos)


COMPILING: CellKey = ((COMPILING_NAME,), "compiling")
OUTSIDE: CellKey = ((OUTSIDE_NAME,), "outside")


@pytest.mark.parametrize(
    ("key", "in_evaluations", "within"),
    [(OUTSIDE, False, 0.001), (COMPILING, True, 0.26)],
)
def test_what_comes_once_is_no_pattern(
    key: CellKey, in_evaluations: bool, within: float
) -> None:
    """Saving after the last step that was seen; compiling for evaluation, where it is
    not known how much of the time between calls is that of training."""
    counted = evaluating(40, 400, 0).profile
    seen = evaluating(10, 100, 0).profile
    once = seen_with(seen, key, 10**6, in_evaluations * 10**6)
    found = imagined(Stratum(with_fields(counted, cells={})), once)
    assert found.wall_ns == own_sum(found) == 40 * 10_000 + 400 * 2000
    times, expected = found.phase_times_ns(), counted.phase_times_ns()
    for phase in ("forward", "backward"):
        assert times[phase] == pytest.approx(expected[phase], rel=within)


def test_evaluations_that_were_not_watched_are_like_those_that_were() -> None:
    """Many may have been taken for one."""
    counted = evaluating(40, 400, 0).profile
    times = counted.step_times._replace(evaluations=4)
    seen = evaluating(10, 100, 0).profile
    found = imagined(Stratum(with_fields(counted, cells={}, step_times=times)), seen)
    assert found.wall_ns == own_sum(found)
    assert (UNSAMPLED_NAME,) not in {path for path, _ in found.cells}
    expected = counted.phase_times_ns()
    for phase, phase_ns in found.phase_times_ns().items():
        assert phase_ns == pytest.approx(expected[phase], rel=0.001)


def test_what_differs_between_calls_is_scaled_with_them() -> None:
    memory = MemoryTotals(100, 10, 5, 70)
    totals = Totals(2, 40, duration_ns=40, squares_ns2=10**2 + 30**2, memory=memory)
    found = scaled(totals, time=15.0, calls=10.0)  # each takes half as long again
    assert (found.calls, found.duration_ns) == (20, 600)
    assert found.squares_ns2 == 10 * (15**2 + 45**2)
    assert found.memory == MemoryTotals(1000, 100, 50, 70)


@pytest.mark.parametrize("is_unwatched", [True, False])
def test_evaluations_that_were_not_watched_are_in_long_steps(
    is_unwatched: bool,
) -> None:
    """Of reinforcement learning: 100 calls of a policy, and ten steps of training."""
    counter = StepCounter()
    counter.count(9 * 4 * 10_000, 9 * 4, is_first=False)
    for _ in range(4):
        counter.count(10_000 + 100 * 2000, is_first=False)
    counted = evaluating(40, 400, 0).profile
    unwatched = Stratum(
        with_fields(counted, cells={}, step_times=counter.times()),
        unwatched_ns=counted.wall_ns * is_unwatched,
    )
    found = imagined(unwatched, evaluating(10, 100, 0).profile)
    assert found.wall_ns == own_sum(found) == counted.wall_ns
    unseen_ns = 0 if is_unwatched else 4 * (10_000 + 100 * 2000)
    is_unseen = (UNSAMPLED_NAME,), "outside"
    assert sum(t.self_ns for k, t in found.cells.items() if k == is_unseen) == unseen_ns
    if is_unwatched:
        for phase, phase_ns in counted.phase_times_ns().items():
            assert found.phase_times_ns()[phase] == pytest.approx(phase_ns, rel=0.001)
