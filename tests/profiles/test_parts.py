"""Start-up and loop: what belongs to which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.profile_of import profile_of
from torchprof_hooks import Profile
from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.compare import mean_duration
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.program import MeasuredSteps
from torchprof_hooks.profiles.step_times import (
    Bucket,
    StepTimes,
    bucket_of,
    sorted_buckets,
)
from torchprof_hooks.profiles.totals import Totals

NET: CellKey = (("Net",), "forward")
OUTSIDE: CellKey = (("(outside modules)",), "outside")
INFOS = {"Net": ModuleInfo("Net"), "(outside modules)": ModuleInfo(kind="outside")}
MS = 10**6


def totals(*durations_ns: int) -> Totals:
    """Of calls that took so long."""
    return Totals(
        len(durations_ns),
        sum(durations_ns),
        min_ns=min(durations_ns),
        max_ns=max(durations_ns),
        duration_ns=sum(durations_ns),
        squares_ns2=sum(each**2 for each in durations_ns),
    )


def training(first_ns: int, *later_ns: int) -> Profile:
    """A step for each call."""
    times = StepTimes(
        1, first_ns, sorted_buckets(Bucket(bucket_of(ns), 1, ns) for ns in later_ns)
    )
    return profile_of(
        {NET: totals(first_ns, *later_ns)},
        INFOS,
        first_ns + sum(later_ns),
        1 + len(later_ns),
        items=100 * (1 + len(later_ns)),
        step_times=times,
        first={NET: totals(first_ns)},
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
    [key] = whole.cells
    assert whole.cells[key] == totals(50, 10, 20, 30)
    assert whole.start_up.merge(whole.loop) == whole


def test_the_longest_call_of_the_loop_is_not_the_first_one() -> None:
    loop = training(2000 * MS, *[MS] * 99).loop
    assert loop.cells[NET].max_ns == loop.cells[NET].min_ns == MS
    assert mean_duration(loop.cells[NET]).mean_ns == MS


@pytest.mark.parametrize("longest", [2, 50])
def test_it_may_be_a_later_one(longest: int) -> None:
    loop = training(1, *[2] * 9, longest).loop
    assert loop.cells[NET].max_ns == longest


def test_steps_and_items_are_divided() -> None:
    profile = training(40, 10, 10, 10)
    start_up, loop = profile.start_up, profile.loop
    assert (start_up.items, loop.items) == (100, 300)
    assert start_up.step_times == StepTimes(1, 40)
    assert (loop.step_times.first_steps, loop.step_times.later_steps) == (0, 3)
    assert loop.items_per_second == profile.items_per_second == 100 / 10e-9
    assert start_up.items_per_second == 100 / 40e-9
