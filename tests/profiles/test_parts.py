"""Start-up, loop and what was not measured: what belongs to which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.build import buckets, profile_of, timed, with_unmeasured
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
    measured = MeasuredSteps((0.25,), 1, 9)
    whole = replace(
        training(60, 10, 10, 20),
        overhead_ns=10,
        measured=measured,
    )
    start_up, loop = whole.start_up, whole.loop
    assert (start_up.overhead_ns, loop.overhead_ns) == (6, 4)
    assert start_up.measured == loop.measured == measured


def test_merged_parts_are_the_whole() -> None:
    whole = training(50, 10, 20, 30)
    assert dict(whole.cells) == {NET: timed(50, 10, 20, 30)}
    assert whole.start_up.merge(whole.loop) == whole


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


def test_steps_that_were_not_measured_are_a_part_with_one_row() -> None:
    whole = replace(training(50, 10, 20), overhead_ns=8, items=600)
    some = with_unmeasured(whole, 3, 27)
    assert (some.wall_ns, some.steps, some.measured_steps) == (107, 6, 3)
    assert (some.unmeasured.steps, some.unmeasured.wall_ns) == (3, 27)
    rows = {row.name: row.self_ns for row in some.rows()}
    assert rows == {"Net": 80, "(not measured)": 27}
    assert some.phase_times_ns() == whole.phase_times_ns() == {"forward": 80}
    measured = some.only_measured
    assert (measured.wall_ns, measured.steps, measured.items) == (80, 3, 300)
    assert measured.parts == whole.parts
    assert some.step_times.later_ns == whole.step_times.later_ns + 27


def test_numbers_of_the_measured_steps_are_divided_among_these() -> None:
    whole = replace(training(60, 10, 10), overhead_ns=8)
    some = with_unmeasured(replace(whole, items=500), 2, 1000)
    for name in ("start_up", "loop"):
        part, alone = getattr(some, name), getattr(whole, name)
        assert (part.overhead_ns, part.items) == (alone.overhead_ns, alone.items)
        assert (part.cells, part.step_times) == (alone.cells, alone.step_times)
    assert some.only_measured.overhead_ns == 8
    assert some.items_per_second == whole.items_per_second


def test_merged_unmeasured_steps_come_last() -> None:
    one, other = with_unmeasured(training(50, 10), 3, 27), training(40, 10)
    both = other.merge(one)
    assert [part.name for part in both.parts] == ["start-up", "loop", "unmeasured"]
    assert both == one.merge(other)
    assert both.unmeasured == one.unmeasured


def test_of_many_blocks_so_many_are_kept_that_the_spread_stays() -> None:
    one = MeasuredSteps(tuple(n / 1000 for n in range(512)))
    other = MeasuredSteps(tuple(n / 1000 for n in range(512, 1024)))
    both = one.merge(other)
    assert both == other.merge(one)
    assert both.longer == tuple(n / 1000 for n in range(0, 1024, 2))
