"""Start-up and loop: what belongs to which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers import timed
from tests.profile_of import profile_of
from tests.ranks_of import buckets
from torchprof_hooks import Profile
from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.measured_steps import MeasuredSteps
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.step_times import StepTimes

NET: CellKey = (("Net",), "forward")


def training(first_ns: int, *later_ns: int) -> Profile:
    """A step of 100 items for each call."""
    return profile_of(
        {NET: timed(first_ns, *later_ns)},
        {"Net": ModuleInfo("Net")},
        first_ns + sum(later_ns),
        1 + len(later_ns),
        items=100 * (1 + len(later_ns)),
        step_times=StepTimes(1, first_ns, buckets(later_ns)),
        first={NET: timed(first_ns)},
    )


def test_what_was_asked_of_a_device_is_divided_by_calls() -> None:
    whole = replace(training(50, 10, 10, 10), device_asked=81, device_waits=43)
    assert (whole.start_up.device_asked, whole.start_up.device_waits) == (20, 10)
    assert (whole.loop.device_asked, whole.loop.device_waits) == (60, 32)


def test_what_measuring_took_is_divided_by_time() -> None:
    measured = MeasuredSteps(4, 2)
    whole = replace(
        training(60, 10, 10, 20),
        overhead_ns=10,
        overhead_error_ns=5,
        measured=measured,
    )
    start_up, loop = whole.start_up, whole.loop
    assert (start_up.overhead_ns, loop.overhead_ns) == (6, 4)
    assert (start_up.overhead_error_ns, loop.overhead_error_ns) == (3, 2)
    assert start_up.measured == loop.measured == measured


def test_merged_parts_are_the_whole() -> None:
    whole = training(50, 10, 20, 30)
    assert dict(whole.cells) == {NET: timed(50, 10, 20, 30)}
    assert whole.start_up.merge(whole.loop) == whole


def test_the_longest_call_of_the_loop_is_not_the_first_one() -> None:
    cell = training(2000, *[1] * 99).loop.cells[NET]
    assert (cell.min_ns, cell.max_ns, cell.mean_ns) == (1, 1, 1)


@pytest.mark.parametrize("longest", [2, 50])
def test_the_longest_call_may_be_a_later_one(longest: int) -> None:
    assert training(1, *[2] * 9, longest).loop.cells[NET].max_ns == longest


def test_steps_and_items_are_divided() -> None:
    profile = training(40, 10, 10, 10)
    start_up, loop = profile.start_up, profile.loop
    assert (start_up.items, loop.items) == (100, 300)
    assert start_up.step_times == StepTimes(1, 40)
    assert (loop.step_times.first_steps, loop.step_times.later_steps) == (0, 3)
    assert loop.items_per_second == profile.items_per_second == 100 / 10e-9
    assert start_up.items_per_second == 100 / 40e-9
