"""Idle time of devices, planted in traces by hand."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from torchprof_hooks.profiles.names import OUTSIDE_NAME, Phase
from torchprof_hooks.profiles.trace.device_idle import (
    LAUNCHED_NAME,
)
from torchprof_hooks.profiles.trace.device_step import DeviceStep, find_device_step
from torchprof_hooks.profiles.trace.host_places import UNSEEN_NAME
from torchprof_hooks.profiles.trace.step_trace import (
    DeviceActivity,
    ModuleSpan,
    StepTrace,
)

#: A step from 100 to 200: two modules forward, the second one inside of a third, then
#: both backward, then an optimizer.
MODULES = [
    ModuleSpan("Net", "Net", "forward", 105, 145),
    ModuleSpan("Net.a", "Linear", "forward", 110, 120),
    ModuleSpan("Net.b", "Linear", "forward", 125, 140),
    ModuleSpan("Net.b", "Linear", "backward", 150, 160),
    ModuleSpan("Net.a", "Linear", "backward", 160, 170),
    ModuleSpan("(optimizer) SGD", "", "optimizer", 180, 190),
]


def kernel(
    start_ns: int, end_ns: int, launch_ns: int | None = None, device: str = "cuda:0"
) -> DeviceActivity:
    return DeviceActivity(device, start_ns, end_ns, launch_ns)


def idle(
    *activities: DeviceActivity, modules: list[ModuleSpan] = MODULES
) -> DeviceStep:
    trace = StepTrace(3, 1, 1, 100, 200, modules, activities=list(activities))
    found = find_device_step(trace)
    assert found.step_ns == 100
    for use in found.devices:
        assert use.busy_ns + use.idle_ns == found.step_ns
    return found


def rows(found: DeviceStep, device: int = 0) -> dict[tuple[str, Phase], int]:
    return {(r.module, r.phase): r.idle_ns for r in found.devices[device].rows}


def test_nothing_on_devices() -> None:
    assert idle().devices == ()
    assert idle(kernel(10, 20, 9), kernel(300, 310, 290)).devices == ()


def test_devices_have_rows_of_their_own() -> None:
    found = idle(kernel(100, 200, 99), kernel(110, 120, 112, "cuda:1"))
    assert [(d.device, d.idle_ns) for d in found.devices] == [
        ("cuda:0", 0),
        ("cuda:1", 90),
    ]


@pytest.mark.parametrize("seed", range(30))
def test_every_nanosecond_has_one_place(seed: int) -> None:
    """The rule, applied to each single nanosecond of random steps."""
    rng = random.Random(seed)
    modules = _random_modules(rng, 100, 200, "Net")
    activities = []
    for _ in range(rng.randint(1, 12)):
        start_ns = rng.randint(80, 215)
        launch_ns = rng.choice([None, start_ns - rng.randint(0, 30)])
        activities.append(kernel(start_ns, start_ns + rng.randint(1, 15), launch_ns))
    found = idle(*activities, modules=modules)

    expected: Counter[tuple[str, str]] = Counter()
    for now_ns in range(100, 200):
        expected[_booked(now_ns, activities, modules)] += 1
    busy_ns = expected.pop(("busy", ""), 0)
    if found.devices:
        assert found.devices[0].busy_ns == busy_ns
        assert rows(found) == dict(expected)
    else:
        assert not busy_ns


def _random_modules(
    rng: random.Random, start_ns: int, end_ns: int, name: str
) -> list[ModuleSpan]:
    made: list[ModuleSpan] = []
    now_ns = start_ns
    while end_ns - now_ns > 4 and len(name) < 12:
        first, last = sorted(rng.sample(range(now_ns, end_ns), 2))
        inner = f"{name}.{len(made)}"
        made.append(ModuleSpan(inner, "Layer", "forward", first, last))
        made += _random_modules(rng, first, last, inner)
        now_ns = last
    return made


def _booked(
    now_ns: int, activities: list[DeviceActivity], modules: list[ModuleSpan]
) -> tuple[str, str]:
    if any(a.start_ns <= now_ns < a.end_ns for a in activities):
        return "busy", ""
    later = [a for a in activities if a.start_ns > now_ns]
    if later:
        start_ns = min(a.start_ns for a in later)
        ends = [a for a in later if a.start_ns == start_ns]
        launches = [a.start_ns if a.launch_ns is None else a.launch_ns for a in ends]
        first = ends[launches.index(min(launches))]
        if first.launch_ns is None:
            return UNSEEN_NAME, "outside"
        if first.launch_ns <= now_ns:
            return LAUNCHED_NAME, "outside"
    inside = [m for m in modules if m.start_ns <= now_ns < m.end_ns]
    if not inside:
        return OUTSIDE_NAME, "outside"
    innermost = max(inside, key=lambda m: (m.start_ns, -m.end_ns, modules.index(m)))
    return innermost.name, innermost.phase
