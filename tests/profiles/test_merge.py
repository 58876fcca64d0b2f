from __future__ import annotations

import tempfile
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.build import profile_of
from torchprof_hooks import Profile
from torchprof_hooks.profiles.measured_steps import MeasuredSteps
from torchprof_hooks.profiles.memory import (
    NO_MEMORY,
    MemorySummary,
    MemoryTotals,
)
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import GROUPINGS, Kind, Phase
from torchprof_hooks.profiles.parts import divided
from torchprof_hooks.profiles.step_history import (
    PhaseOfStep,
    SlowStep,
    StepHistory,
    slowest_of,
)
from torchprof_hooks.profiles.step_times import Bucket, StepTimes, sorted_buckets
from torchprof_hooks.profiles.totals import Totals

NAMES = ("Net", "Net.a", "Net.b", "Net.a.ü", 'odd "name"\n')

counts = st.integers(0, 2**58)
differences = st.integers(-(2**40), 2**58)
memory_totals = st.builds(MemoryTotals, counts, differences, differences, counts)


@st.composite
def totals(draw: st.DrawFn) -> Totals:
    durations = draw(st.lists(st.integers(0, 2**58), max_size=4))
    return Totals(
        calls=len(durations),
        self_ns=draw(counts),  # open calls: without any ended
        min_ns=min(durations, default=0),
        max_ns=max(durations, default=0),
        duration_ns=sum(durations),
        squares_ns2=sum(d * d for d in durations),
        device_self_ns=draw(differences),
        memory=draw(memory_totals),
        flops=draw(counts),
    )


infos = st.builds(
    ModuleInfo,
    class_name=st.sampled_from(["", "Linear", "Block", "Zebra"]),
    kind=st.sampled_from(get_args(Kind)),
    aliases=st.lists(st.sampled_from(["x.y", "x.z", "w"]), unique=True).map(
        lambda names: tuple(sorted(names))
    ),
    compiled=st.booleans(),
    order=st.integers(0, 3),
    implementation=st.sampled_from(["", "C", "Py", "custom"]),
    inputs=st.sampled_from([(), ("float32@cpu",), ("float64@cpu",) * 2]),
)

paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map(tuple)

summaries = st.builds(
    MemorySummary,
    source=st.sampled_from(["", "cpu", "cuda:0", "cuda:0, cuda:1"]),
    peak_bytes=st.integers(0, 2) | counts,  # also ties
    peak_path=st.lists(st.sampled_from((*NAMES, "gone")), max_size=3).map(tuple),
    peak_phase=st.sampled_from(get_args(Phase)),
    unavailable=st.sampled_from(["", "no counter", "a; b", "switched off"]),
)

buckets = st.builds(Bucket, st.integers(0, 3), st.integers(1, 9), counts)


@st.composite
def step_times(draw: st.DrawFn) -> StepTimes:
    several = st.lists(buckets, max_size=5).map(sorted_buckets)
    found = StepTimes(
        *(draw(counts), draw(counts), draw(several)),
        *(draw(counts), draw(counts), draw(several)),
    )
    share = draw(
        st.sampled_from([0.0, 0.5])
    )  # of evaluation calls that runs began with
    return found._replace(
        first_evaluations=int(share * found.evaluations),
        first_evaluation_ns=int(share * found.evaluation_ns),
    )


slow_steps = st.builds(
    SlowStep,
    st.integers(1, 3),
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from([(), (PhaseOfStep("data", 7, 2), PhaseOfStep("garbage", 1, 0))]),
    st.sampled_from(["", "Net.a"]),
    *[st.integers(0, 9)] * 3,
)


@st.composite
def histories(draw: st.DrawFn) -> StepHistory:
    size = draw(st.integers(0, 2))
    numbers = st.lists(st.integers(1, 3), min_size=size, max_size=size).map(tuple)
    slow = draw(st.lists(slow_steps, max_size=9))
    return StepHistory(
        *(draw(st.integers(0, 2)), draw(numbers), draw(numbers), draw(numbers)),
        slowest_of(slow),
    )


runs = st.builds(
    profile_of,
    cells=st.dictionaries(
        st.tuples(paths, st.sampled_from(get_args(Phase))), totals(), max_size=6
    ),
    modules=st.fixed_dictionaries(dict.fromkeys(NAMES, infos)),
    steps=counts,
    aborted_calls=counts,
    undivided_passes=counts,
    overhead_ns=counts,
    devices=st.sampled_from([(), ("cuda",), ("cuda", "xpu")]),
    memory=st.none() | summaries,
    measured=st.builds(
        MeasuredSteps,
        st.lists(st.floats(-1, 9), max_size=3).map(tuple),
        counts,
        counts,
    ),
    step_times=step_times(),
    step_history=histories(),
)


def with_first(run: Profile, count: int) -> Profile:
    """The run, of which so many cells were all in the first step."""
    if run.steps < max(run.step_times.first_steps, 1):
        return run
    first, times = dict(list(run.cells.items())[:count]), run.step_times
    of_first = StepTimes(times.first_steps, times.first_ns)
    return replace(run, parts=divided(run.parts[0], first, of_first))


profiles = st.builds(with_first, runs, st.integers(0, 6))


@given(profiles, profiles, profiles)
def test_merging_is_associative_and_commutative(
    a: Profile, b: Profile, c: Profile
) -> None:
    both, other = a.merge(b), b.merge(a)
    assert both == other
    assert both.merge(c) == a.merge(b.merge(c))
    assert a.merge(profile_of()) == a == profile_of().merge(a)
    for by in GROUPINGS:
        assert both.rows(by) == other.rows(by)
    for functions in (False, True):
        assert both.tree(functions=functions) == other.tree(functions=functions)


@given(profiles, profiles)
def test_merging_keeps_sums_and_extremes(left: Profile, right: Profile) -> None:
    both = left.merge(right)
    for field in (
        *("wall_ns", "steps", "aborted_calls", "undivided_passes"),
        *("overhead_ns", "measured.traced", "measured.traced_ns"),
    ):
        of = attrgetter(field)
        assert of(left) + of(right) == of(both)
    longer = [*left.measured.longer, *right.measured.longer]
    assert sorted(both.measured.longer) == sorted(longer)
    for field in (
        *("calls", "self_ns", "duration_ns", "squares_ns2", "device_self_ns", "flops"),
        *("memory.used_bytes", "memory.acquired_bytes", "memory.retained_bytes"),
    ):
        sums = [sum(map(attrgetter(field), p.cells.values())) for p in (left, right)]
        assert sum(sums) == sum(map(attrgetter(field), both.cells.values()))
    assert both.cells.keys() == {*left.cells, *right.cells}
    for key, merged in both.cells.items():
        parts = [p.cells[key] for p in (left, right) if key in p.cells]
        called = [part.min_ns for part in parts if part.calls]
        assert merged.min_ns == min(called, default=0)
        assert merged.max_ns == max(part.max_ns for part in parts)
        peaks = [part.memory.peak_bytes for part in parts]
        assert merged.memory.peak_bytes == max(peaks)


def test_each_field_that_is_no_number_says_how_it_is_merged() -> None:
    silent = (each for each in fields(Profile) if "sum" not in each.metadata)
    assert [each.name for each in silent if type(each.default) is not int] == []


@given(profiles)
def test_saving_and_loading_gives_an_equal_profile(profile: Profile) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "profile.json")
        profile.save(path)
        assert Profile.load(path) == profile


@given(profiles)
def test_own_numbers_of_rows_and_nodes_add_up_to_those_of_the_cells(
    profile: Profile,
) -> None:
    total_ns = sum(totals.self_ns for totals in profile.cells.values())
    memory = sum((totals.memory for totals in profile.cells.values()), NO_MEMORY)
    for by in GROUPINGS:
        rows = profile.rows(by)
        assert sum(row.self_ns for row in rows) == total_ns
        own = (totals.memory for row in rows for totals in row.phases.values())
        assert replace(sum(own, NO_MEMORY), peak_bytes=memory.peak_bytes) == memory
    for functions in (False, True):
        tree = profile.tree(functions=functions)
        assert sum(node.self_ns for _, node in tree.walk()) == total_ns
        assert tree.cumulative_ns == total_ns


INPUTS = ("float32@cpu",)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (ModuleInfo("A"), ModuleInfo("A"), ModuleInfo("A")),
        (ModuleInfo("A|B"), ModuleInfo("B|C"), ModuleInfo("A|B|C")),
        (ModuleInfo("A"), ModuleInfo("A", "function"), ModuleInfo("A", "module")),
        (
            ModuleInfo("A", aliases=("z", "zz")),
            ModuleInfo("A", aliases=("y", "z"), compiled=True),
            ModuleInfo("A", aliases=("y", "z", "zz"), compiled=True),
        ),
        (
            ModuleInfo("A", implementation="C", inputs=INPUTS),
            ModuleInfo("A"),
            ModuleInfo("A", implementation="C", inputs=INPUTS),
        ),
        (
            ModuleInfo("A", implementation="custom", inputs=INPUTS),
            ModuleInfo("A", implementation="C", inputs=("float32@cuda",)),
            ModuleInfo("A", implementation="C|custom", inputs=("mixed",)),
        ),
    ],
    ids=["equal", "classes", "kinds", "aliases", "unknown", "mixed"],
)
def test_what_is_known_of_a_name_is_united(
    left: ModuleInfo, right: ModuleInfo, expected: ModuleInfo
) -> None:
    assert left.merge(right) == expected == right.merge(left)
