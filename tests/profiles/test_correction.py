"""Taking out what measuring itself took."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from tests.helpers import FUNCTIONS, STEP, hand_built, own
from tests.profile_of import profile_of, with_fields
from tests.profiles.test_merge import profiles
from torchprof_hooks import Profile
from torchprof_hooks.capture.sampling.estimates.strata import Strata
from torchprof_hooks.capture.sampling.estimates.stratum import Stratum
from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import GROUPINGS, PROFILER_NAME, Grouping, Phase
from torchprof_hooks.profiles.totals import Totals

PROFILER: CellKey = ((PROFILER_NAME,), "profiler")


def spent(self_ns: int, overhead_ns: int, calls: int = 1) -> Totals:
    """A cell of which measuring took a part."""
    return replace(own(self_ns, calls), overhead_ns=overhead_ns)


#: Of 120, measuring took 31: 3 for planning, and 28 in the time of others.
MEASURED = hand_built(
    {
        ("Net", "forward"): spent(20, 9, calls=2),
        ("Net > Net.a", "forward"): spent(30, 4, calls=2),
        ("Net > Net.a", "backward"): spent(40, 6, calls=2),
        ("Net > Net.a", "recompute"): spent(10, 2),
        ("(optimizer) SGD", "optimizer"): spent(5, 1),
        ("(outside modules)", "outside"): spent(12, 6, calls=0),
        ("(profiler)", "profiler"): own(3, calls=2),
    },
    {
        "Net": "Net",
        "Net.a": "Linear",
        "(optimizer) SGD": ModuleInfo(kind="optimizer"),
        "(outside modules)": ModuleInfo(kind="outside"),
        "(profiler)": ModuleInfo(kind="profiler"),
    },
    steps=2,
    overhead_ns=31,
)


def own_ns(profile: ProfileData) -> dict[tuple[str, Phase], int]:
    return {(p[-1], phase): t.self_ns for (p, phase), t in profile.cells.items()}


def spread(profile: Profile) -> Profile:
    """The same with some overhead, more or less, in each cell."""
    cells = {
        key: replace(totals, overhead_ns=(7 * number) % 12)
        for number, (key, totals) in enumerate(profile.cells.items())
    }
    return with_fields(profile, cells=cells)


def test_own_times_are_lower_and_that_of_the_profiler_is_higher() -> None:
    assert own_ns(MEASURED.corrected()) == {
        ("Net", "forward"): 11,
        ("Net.a", "forward"): 26,
        ("Net.a", "backward"): 34,
        ("Net.a", "recompute"): 8,
        ("(optimizer) SGD", "optimizer"): 4,
        ("(outside modules)", "outside"): 6,
        ("(profiler)", "profiler"): 31,
    }


def test_cumulative_times_follow() -> None:
    raw, corrected = (
        {row.name: row for row in profile.rows()}
        for profile in (MEASURED, MEASURED.corrected())
    )
    assert raw["Net"].phases["forward"].cumulative_ns == 50
    assert corrected["Net"].phases["forward"].cumulative_ns == 37
    assert corrected["Net"].cumulative_ns == 37 + 34 + 8


def test_the_row_of_the_profiler_is_made_if_there_is_none() -> None:
    profile = hand_built({("Net", "forward"): spent(20, 5)}, {"Net": "Net"})
    corrected = profile.corrected()
    assert corrected.cells[PROFILER] == Totals(self_ns=5)
    assert corrected.modules[PROFILER_NAME].kind == "profiler"
    assert {row.name: row.self_ns for row in corrected.rows()} == {
        "Net": 15,
        PROFILER_NAME: 5,
    }


def test_it_is_added_to_with_its_calls_as_they_were() -> None:
    assert MEASURED.corrected().cells[PROFILER] == own(31, calls=2)


def test_nothing_is_made_where_nothing_was_taken() -> None:
    profile = hand_built({("Net", "forward"): own(20)}, {"Net": "Net"})
    assert profile.corrected().cells == profile.cells
    assert profile_of().corrected().is_empty
    assert not profile_of().corrected().cells


@pytest.mark.parametrize(
    ("self_ns", "overhead_ns", "kept"),
    [(10, 10, 0), (10, 11, 0), (10, 10**30, 0), (0, 5, 0), (-3, 5, -3), (-3, 0, -3)],
)
def test_a_cell_gives_no_more_than_it_has(
    self_ns: int, overhead_ns: int, kept: int
) -> None:
    profile = hand_built(
        {("Net", "forward"): spent(self_ns, overhead_ns)}, {"Net": "Net"}
    )
    corrected = profile.corrected()
    assert corrected.cells[("Net",), "forward"].self_ns == kept
    taken = corrected.cells.get(PROFILER, Totals()).self_ns
    assert taken == self_ns - kept


def test_what_the_meters_took_of_planning_stays_there() -> None:
    cells: dict[tuple[str, Phase], Totals] = {
        ("Net", "forward"): spent(20, 5),
        ("train > (profiler)", "profiler"): spent(8, 2),
        ("(profiler)", "profiler"): spent(10, 4),
    }
    infos: dict[str, ModuleInfo | str] = {
        "Net": "Net",
        "train": "train",
        "(profiler)": ModuleInfo(kind="profiler"),
    }
    corrected = hand_built(cells, infos).corrected()
    rows = {row.name: row.self_ns for row in corrected.rows()}
    assert rows["(profiler)"] == 10 + 8 + 5
    assert rows["Net"] == 15


def test_all_else_stays() -> None:
    memory = replace(own(0).memory, used_bytes=7, retained_bytes=3, peak_bytes=9)
    totals = Totals(
        calls=4,
        self_ns=100,
        min_ns=10,
        max_ns=60,
        duration_ns=130,
        squares_ns2=5000,
        device_self_ns=90,
        memory=memory,
        flops=11,
        overhead_ns=40,
    )
    profile = hand_built(
        {("Net", "forward"): totals},
        {"Net": "Net"},
        steps=4,
        aborted_calls=1,
        overhead_ns=44,
        devices=("cuda",),
        undivided_passes=2,
        unmeasured_steps=6,
        unmeasured_ns=600,
    )
    corrected = profile.corrected()
    cell = corrected.cells[("Net",), "forward"]
    assert cell == replace(totals, self_ns=60, overhead_ns=0)
    assert (cell.mean_ns, cell.std_ns) == (totals.mean_ns, totals.std_ns)
    kept = replace(corrected, parts=profile.parts, modules=profile.modules)
    assert kept == profile


def test_what_was_measured_is_left_alone() -> None:
    profile = spread(STEP)
    before = dict(profile.cells), dict(profile.modules), profile.wall_ns
    profile.corrected()
    assert (profile.cells, profile.modules, profile.wall_ns) == before


@pytest.mark.parametrize("profile", [MEASURED, STEP, FUNCTIONS, profile_of()])
def test_once_is_enough(profile: Profile) -> None:
    corrected = spread(profile).corrected()
    assert corrected.corrected() == corrected


@pytest.mark.parametrize("by", GROUPINGS)
@pytest.mark.parametrize("profile", [MEASURED, spread(STEP), spread(FUNCTIONS)])
def test_sums_are_those_of_before(profile: Profile, by: Grouping) -> None:
    corrected = profile.corrected()
    rows = {row.name: row for row in corrected.rows(by)}
    assert sum(row.self_ns for row in rows.values()) == profile.wall_ns
    for row in profile.rows(by):
        if row.name == PROFILER_NAME:
            assert rows[row.name].self_ns >= row.self_ns
        else:
            assert 0 <= rows[row.name].self_ns <= row.self_ns
            assert rows[row.name].cumulative_ns <= row.cumulative_ns
        assert rows[row.name].calls == row.calls


@pytest.mark.parametrize("functions", [False, True])
def test_the_tree_is_the_same_one(functions: bool) -> None:
    profile = spread(FUNCTIONS)
    raw, corrected = (
        p.tree(functions=functions) for p in (profile, profile.corrected())
    )
    assert raw.cumulative_ns == corrected.cumulative_ns == profile.wall_ns
    names = [[node.name for _, node in tree.walk()] for tree in (raw, corrected)]
    assert sorted(names[0]) == sorted(names[1])


@given(profiles)
def test_sums_of_whatever_there_is(profile: Profile) -> None:
    corrected = profile.corrected()
    sums = [sum(t.self_ns for t in p.cells.values()) for p in (profile, corrected)]
    assert sums[0] == sums[1]
    assert corrected.corrected() == corrected
    assert not any(t.overhead_ns for t in corrected.cells.values())


@given(profiles, profiles)
def test_the_order_of_merging_does_not_matter(left: Profile, right: Profile) -> None:
    assert left.merge(right).corrected() == right.merge(left).corrected()


def test_merging_comes_before_or_after() -> None:
    both = MEASURED.merge(MEASURED)
    assert both.corrected() == MEASURED.corrected().merge(MEASURED.corrected())


# Parts of programs


@pytest.mark.parametrize("of_functions", [False, True])
def test_estimates_have_no_overhead_in_them(
    of_functions: bool,
) -> None:
    # GIVEN 8 steps as a whole, and one looked into: there, measuring took half of a
    infos = {
        "Net": ModuleInfo("Net"),
        "Net.a": ModuleInfo("Linear"),
        "Net.b": ModuleInfo("Linear"),
        "(outside modules)": ModuleInfo(kind="outside"),
    }
    whole: Profile = hand_built(
        {
            ("Net", "forward"): own(800, calls=8),
            ("(outside modules)", "outside"): own(80, calls=0),
        },
        infos,
    )
    close = hand_built(
        {
            ("Net > Net.a", "forward"): spent(100, 50),
            ("Net > Net.b", "forward"): spent(50, 0),
            ("Net", "forward"): spent(30, 30),
            ("(outside modules)", "outside"): spent(20, 10, calls=0),
        },
        infos,
    )
    layer = "functions" if of_functions else "modules"
    strata = Strata(phases=Stratum(whole, 8, 880), **{layer: Stratum(close, 1, 200)})

    # WHEN all 9 are estimated
    estimate = strata.estimate(of_functions=of_functions)

    # THEN a and b took the same, without that, and what all took is what it was
    rows = {row.name: row for row in estimate.rows()}
    assert rows["Net.a"].self_ns == rows["Net.b"].self_ns == (800 + 100) / 2
    assert rows["Net"].self_ns == 0
    assert rows["(outside modules)"].self_ns == 80 + 10
    assert rows["(profiler)"].self_ns == 50 + 30 + 10
    assert sum(row.self_ns for row in rows.values()) == whole.wall_ns + close.wall_ns
    assert estimate.corrected().cells == estimate.cells


def test_a_part_that_was_all_overhead_is_kept_as_a_whole() -> None:
    infos = {"Net": ModuleInfo("Net"), "Net.a": ModuleInfo("Linear")}
    close = hand_built(
        {
            ("Net", "forward"): spent(10, 10),
            ("Net > Net.a", "forward"): spent(20, 20),
        },
        infos,
    )
    estimate = Strata(modules=Stratum(close, 1, 30)).estimate(of_functions=False)
    assert sum(totals.self_ns for totals in estimate.cells.values()) == 30
    assert estimate.wall_ns == 30
