"""Backward of several outermost modules, of which some are looked into more often."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.profile_of import profile_of
from torchprof_hooks.capture.sampling.estimates.strata import Strata
from torchprof_hooks.capture.sampling.estimates.stratum import Stratum
from torchprof_hooks.profiles.cells import CellKey, add_cell
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import BACKWARD_NAME, OUTSIDE_NAME
from torchprof_hooks.profiles.step_times import StepTimes
from torchprof_hooks.profiles.totals import Totals

INFOS = {
    "Slow": ModuleInfo("Slow"),
    "Fast": ModuleInfo("Fast"),
    "Fast.fc": ModuleInfo("Linear"),
    "relu(2)": ModuleInfo("relu", kind="function"),
    OUTSIDE_NAME: ModuleInfo(kind="outside"),
    BACKWARD_NAME: ModuleInfo(kind="backward"),
}
PASSES: CellKey = ((BACKWARD_NAME,), "backward")
#: Own times of calls in training steps that are looked into.
OF_A_STEP: dict[str, dict[CellKey, int]] = {
    "Slow": {
        (("Slow",), "forward"): 3000,
        (("Slow",), "backward"): 6000,
        PASSES: 500,
    },
    "Fast": {
        (("Fast",), "forward"): 20,
        (("Fast", "Fast.fc"), "forward"): 10,
        (("Fast",), "backward"): 30,
        (("Fast", "Fast.fc"), "backward"): 10,
        (("Fast", "Fast.fc"), "recompute"): 5,
        (("Fast", "relu(2)"), "backward"): 15,
        PASSES: 500,
    },
}


def stratum(
    *, slow: int, fast: int, evaluations_of_fast: int = 0, inside: bool = True
) -> Stratum:
    """Training steps of two models, and evaluation calls of the fast one."""
    cells: dict[CellKey, Totals] = {}
    for name, steps in (("Slow", slow), ("Fast", fast)):
        for (path, phase), self_ns in OF_A_STEP[name].items():
            is_pass = phase != "forward" and not inside
            key = PASSES if is_pass else (path if inside else path[:1], phase)
            calls = steps if inside or path in ((name,), PASSES[0]) else 0
            add_cell(cells, key, Totals(calls, steps * self_ns))
    evaluations = Totals(evaluations_of_fast, 20 * evaluations_of_fast)
    add_cell(cells, (("Fast",), "forward"), evaluations)
    cells[PASSES] = replace(cells[PASSES], calls=slow + fast)
    wall_ns = sum(totals.self_ns for totals in cells.values())
    steps = slow + fast
    times = StepTimes(evaluations=evaluations_of_fast)
    profile = profile_of(cells, INFOS, wall_ns, steps, step_times=times)
    return Stratum(profile, steps + evaluations_of_fast)


def backward_of(profile: ProfileData) -> dict[CellKey, tuple[int, int]]:
    return {
        key: (totals.calls, totals.self_ns)
        for key, totals in profile.cells.items()
        if key[1] in ("backward", "recompute")
    }


@pytest.mark.parametrize("evaluations", [0, 600])
@pytest.mark.parametrize("of_functions", [False, True])
def test_backward_is_that_of_the_module_that_ran(
    evaluations: int, of_functions: bool
) -> None:
    """Each step of the slow model was looked into, and one of ten of the fast one; of
    its evaluations, which have no backward, fewer."""
    seen = stratum(slow=6, fast=2, evaluations_of_fast=evaluations // 300)
    whole = stratum(slow=6, fast=20, evaluations_of_fast=evaluations)
    phases = stratum(
        slow=0, fast=18, evaluations_of_fast=evaluations * 299 // 300, inside=False
    )
    functions, modules = (seen, Stratum()) if of_functions else (Stratum(), seen)
    strata = Strata(phases=phases, modules=modules, functions=functions)

    found = strata.estimate(of_functions=of_functions)

    expected = backward_of(whole.profile)
    calls_of_passes, passes_ns = expected[PASSES]
    for key, (calls, self_ns) in backward_of(found).items():
        assert calls == expected[key][0]
        assert self_ns == pytest.approx(expected[key][1], abs=2), key
    assert backward_of(found)[PASSES] == (calls_of_passes, passes_ns)
    assert found.wall_ns == strata.whole.wall_ns
    assert found.wall_ns == sum(totals.self_ns for totals in found.cells.values())


def test_where_calls_are_not_known_it_is_that_of_the_steps_looked_into() -> None:
    seen = stratum(slow=6, fast=2)
    phases = stratum(slow=0, fast=18, inside=False)
    counted = profile_of(
        {((OUTSIDE_NAME,), "outside"): Totals(self_ns=9000)},
        INFOS,
        9000,
        10,
        step_times=StepTimes(10, 9000),
    )
    strata = Strata(phases=phases, modules=seen, counted=Stratum(counted, 10, 9000))
    found = backward_of(strata.estimate(of_functions=False))
    assert found[("Slow",), "backward"][1] == pytest.approx(
        found[("Fast",), "backward"][1] * 6 * 6000 / (2 * 30), rel=0.01
    )


def test_one_module_has_all_of_it() -> None:
    """However often it was called without."""
    seen = stratum(slow=0, fast=2, evaluations_of_fast=10)
    strata = Strata(
        phases=stratum(slow=0, fast=18, evaluations_of_fast=500, inside=False),
        modules=seen,
    )
    found = backward_of(strata.estimate(of_functions=False))
    assert found == backward_of(stratum(slow=0, fast=20).profile)
