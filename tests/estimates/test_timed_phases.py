"""Estimates where phases were timed in steps of which else only the end was seen, and
what that says may be more than there is room for."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from tests.profile_of import profile_of
from torchprof_hooks.capture.sampling.estimates.strata import Strata
from torchprof_hooks.capture.sampling.estimates.stratum import Stratum
from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import (
    BACKWARD_NAME,
    GARBAGE_NAME,
    OUTSIDE_NAME,
    WAITING_NAME,
)
from torchprof_hooks.profiles.step_times import Bucket, StepTimes, bucket_of
from torchprof_hooks.profiles.totals import Totals

INFOS = {
    "Net": ModuleInfo("Net"),
    "Net.fc": ModuleInfo("Linear"),
    "(optimizer) SGD": ModuleInfo(kind="optimizer"),
    WAITING_NAME: ModuleInfo(kind="waiting"),
    GARBAGE_NAME: ModuleInfo(kind="garbage"),
    OUTSIDE_NAME: ModuleInfo(kind="outside"),
    BACKWARD_NAME: ModuleInfo(kind="backward"),
}
NET: CellKey = (("Net",), "forward")
LINEAR: CellKey = (("Net", "Net.fc"), "forward")
PASSES: CellKey = ((BACKWARD_NAME,), "backward")
OF_LINEAR: CellKey = (("Net", "Net.fc"), "backward")
OPTIMIZER: CellKey = (("(optimizer) SGD",), "optimizer")
WAITING: CellKey = ((WAITING_NAME,), "waiting")
GARBAGE: CellKey = ((GARBAGE_NAME,), "garbage")
OUTSIDE: CellKey = ((OUTSIDE_NAME,), "outside")


def stratum(
    times: Mapping[CellKey, int],
    steps: int,
    *,
    nodes: int = 0,
    evaluations: int = 0,
    evaluation_ns: int = 0,
    after_ns: int = 0,
) -> Stratum:
    """So many equally long training steps, with evaluation calls, and what came after
    the last step."""
    cells = {key: Totals(steps, self_ns) for key, self_ns in times.items()}
    wall_ns = sum(times.values())
    steps_ns = max(wall_ns - evaluation_ns - after_ns, 0)
    later = (Bucket(bucket_of(steps_ns // steps), steps, steps_ns),) if steps_ns else ()
    step_times = StepTimes(0, 0, later, evaluations, evaluation_ns)
    profile = profile_of(cells, INFOS, wall_ns, steps, step_times=step_times)
    return Stratum(profile, steps + evaluations, steps_ns + evaluation_ns, nodes)


def assert_adds_up(profile: ProfileData, wall_ns: int) -> None:
    assert profile.wall_ns == wall_ns
    assert sum(totals.self_ns for totals in profile.cells.values()) == wall_ns
    assert min(totals.self_ns for totals in profile.cells.values()) >= 0


#: Of ten steps.
SEEN = {NET: 100, LINEAR: 200, PASSES: 50, OF_LINEAR: 450, OPTIMIZER: 100, OUTSIDE: 100}


@pytest.mark.parametrize("unit", [10, 10_000], ids=["by nodes", "by durations"])
@pytest.mark.parametrize("watched", [0, 300], ids=["", "watched"])
@pytest.mark.parametrize("more", [1, 2, 40])
def test_timed_phases_have_no_more_than_there_is(
    unit: int, watched: int, more: int
) -> None:
    """Files of earlier versions may say of phases that were timed in some steps that
    they took longer in all steps than these did."""
    seen = stratum({key: unit * ns for key, ns in SEEN.items()}, 10, nodes=10)
    times = {key: ns for key, ns in ((NET, watched), (GARBAGE, 10)) if ns}
    rest = 1000 - sum(times.values())
    times = {key: 7 * unit * ns for key, ns in {**times, OUTSIDE: rest}.items()}
    counted = stratum(times, 70, nodes=70)._replace(
        backward_ns=more * 3500 * unit, optimizers_ns=more * 700 * unit
    )
    strata = Strata(modules=seen, counted=counted)
    assert_adds_up(strata._imagined(), 7000 * unit)
    found = strata.estimate(of_functions=False)
    assert_adds_up(found, 8000 * unit)
    phases = found.phase_times_ns()
    if watched:
        assert phases["forward"] == 8 * 300 * unit
    room = 990 - watched
    timed_ns = min(more * 600, room)
    assert phases["backward"] == pytest.approx(
        unit * (500 + 7 * timed_ns * 5 / 6), rel=1e-3
    )
    assert phases["optimizer"] == pytest.approx(
        unit * (100 + 7 * timed_ns / 6), rel=1e-3
    )


@pytest.mark.parametrize("seed", range(300))
def test_no_cell_is_below_zero(seed: int) -> None:
    """Whatever was counted, timed and seen, and however short it was."""
    random = Random(seed)
    most = random.choice([3, 100, 10**6])

    def some(*keys: CellKey) -> dict[CellKey, int]:
        kept = [key for key in keys if random.random() < 0.7]
        return {key: random.randint(0, most) for key in kept}

    def made(times: dict[CellKey, int]) -> Stratum:
        steps, calls = random.randint(1, 20), random.choice([0, random.randint(1, 9)])
        took_ns = sum(times.values())
        return stratum(
            times,
            steps,
            nodes=random.choice([0, steps]),
            evaluations=calls,
            evaluation_ns=random.randint(0, took_ns) if calls else 0,
            after_ns=random.randint(0, took_ns // 4),
        )

    inside = (LINEAR, OF_LINEAR) if random.random() < 0.7 else ()
    seen = made(some(NET, *inside, PASSES, OPTIMIZER, WAITING, OUTSIDE))
    counted = made({**some(NET, GARBAGE), OUTSIDE: random.randint(0, 3 * most)})
    wall_ns = counted.profile.wall_ns
    counted = counted._replace(
        backward_ns=random.randint(0, 3 * most),
        optimizers_ns=random.choice([0, random.randint(0, most)]),
        unwatched_ns=random.choice([0, wall_ns // 10, wall_ns]),
    )
    strata = Strata(phases=made(some(NET, PASSES)), modules=seen, counted=counted)
    assert_adds_up(strata._imagined(), wall_ns)
    found = strata.estimate(of_functions=False)
    assert_adds_up(found, strata.whole.wall_ns)
