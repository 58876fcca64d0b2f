"""Kernels of modules, planted in traces by hand."""

from __future__ import annotations

import random
from collections import Counter
from itertools import permutations

import pytest

from tests.profiles.test_device_idle import MODULES, kernel
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import OUTSIDE_NAME, Phase
from torchprof_hooks.profiles.trace.device_step import (
    DeviceStep,
    DeviceUse,
    find_device_step,
)
from torchprof_hooks.profiles.trace.host_places import UNSEEN_NAME
from torchprof_hooks.profiles.trace.kernels import (
    OTHER_THREADS_NAME,
    Kernel,
    KernelRow,
)
from torchprof_hooks.profiles.trace.step_trace import (
    OTHER_THREAD,
    DeviceActivity,
    GraphPass,
    ModuleSpan,
    NodeRun,
    StepTrace,
)

#: Threads: that of the step, and two of the engine.
STEP, FIRST, SECOND = 1, 2, 3


def use(
    *activities: DeviceActivity,
    modules: list[ModuleSpan] = MODULES,
    nodes: list[NodeRun] | None = None,
) -> DeviceUse:
    """What was found of the only device, in a step from 100 to 200."""
    trace = StepTrace(3, 1, STEP, 100, 200, modules, activities=list(activities))
    trace.passes.append(GraphPass(150, 170, []))
    trace.nodes += nodes or []
    [found] = find_device_step(trace).devices
    sum_ns = sum(row.busy_ns for row in found.kernels)
    assert found.kernels_ns + found.overlap_ns == sum_ns
    return found


def kernels(found: DeviceUse) -> dict[tuple[str, Phase], int]:
    return {(row.module, row.phase): row.busy_ns for row in found.kernels}


NET, A, B = ("Net", "forward"), ("Net.a", "forward"), ("Net.b", "forward")
B_BACK, A_BACK = ("Net.b", "backward"), ("Net.a", "backward")


def test_kernels_belong_to_the_innermost_module_at_their_launch() -> None:
    found = use(
        kernel(115, 117, 112),
        kernel(130, 140, 121),
        kernel(145, 150, 126),
        kernel(190, 260, 165),  # most of it after the step
        kernel(260, 270, 185),
        kernel(105, 115, 90),  # of the step before
        kernel(270, 280, 205),  # of the next one
    )
    assert kernels(found) == {
        A_BACK: 70,
        NET: 10,
        ("(optimizer) SGD", "optimizer"): 10,
        B: 5,
        A: 2,
    }
    assert found.overlap_ns == 0


def test_kernels_by_name() -> None:
    """Also those of a graph, which have one launch: that of the module which replays
    it."""
    graph = [kernel(115 + n, 116 + n, 112)._replace(name="in graph") for n in range(3)]
    [row] = use(*graph, kernel(120, 125, 113)._replace(name="add")).kernels
    assert row == KernelRow(
        ("Net.a",), "forward", (Kernel("add", 1, 5), Kernel("in graph", 3, 3))
    )


def test_kernels_of_no_module() -> None:
    prefetch = kernel(130, 134, 112)._replace(thread=OTHER_THREAD)
    found = use(kernel(110, 112, 101), kernel(120, 123), kernel(210, 223), prefetch)
    assert kernels(found) == {
        (OTHER_THREADS_NAME, "outside"): 4,
        (UNSEEN_NAME, "outside"): 3,
        (OUTSIDE_NAME, "outside"): 2,
    }


def node(thread: int, start_ns: int, name: str) -> NodeRun:
    return NodeRun(thread, start_ns, (name,), "backward")


#: Each thread runs the nodes of one device, at the same time.
NODES = [
    node(FIRST, 150, "Net.b"),
    node(SECOND, 155, "Net.a"),
    node(SECOND, 158, "Net.c"),
    node(FIRST, 165, "Net.d"),
]
#: When the place changes, for all that time alone can tell.
BY_TIME = [
    ModuleSpan(name, "", "backward", start_ns, end_ns)
    for name, start_ns, end_ns in (
        ("Net.b", 150, 155),
        ("Net.a", 155, 158),
        ("Net.c", 158, 165),
        ("Net.d", 165, 170),
    )
]


@pytest.mark.parametrize(
    ("thread", "launch_ns", "owner"),
    [
        (FIRST, 152, "Net.b"),
        (FIRST, 156, "Net.b"),  # where the second thread is in a already
        (FIRST, 160, "Net.b"),
        (FIRST, 166, "Net.d"),
        (SECOND, 156, "Net.a"),
        (SECOND, 169, "Net.c"),
        (STEP, 160, "Net.c"),  # runs no nodes: time is all that is known
        (None, 160, "Net.c"),
        (SECOND, 172, OUTSIDE_NAME),  # after the pass
    ],
)
def test_threads_of_the_engine_that_run_at_once(
    thread: int | None, launch_ns: int, owner: str
) -> None:
    launched = kernel(180, 190, launch_ns)._replace(thread=thread)
    [row] = use(launched, modules=BY_TIME, nodes=NODES).kernels
    assert row.module == owner


def test_a_recomputation_in_the_only_thread_of_the_engine() -> None:
    again = ModuleSpan("Net.b", "Linear", "recompute", 152, 155)
    nodes = [node(FIRST, 150, "Net.b"), node(FIRST, 160, "Net.a")]
    launched = kernel(180, 190, 153)._replace(thread=FIRST)
    found = use(launched, modules=[*MODULES, again], nodes=nodes)
    assert kernels(found) == {("Net.b", "recompute"): 10}


@pytest.mark.parametrize("seed", range(20))
def test_kernels_add_up(seed: int) -> None:
    """Each nanosecond of random kernels is in one row, and in the time of the device
    once."""
    rng = random.Random(seed)
    made = []
    for _ in range(rng.randint(1, 15)):
        start_ns = rng.randint(100, 210)
        launch_ns = rng.choice([None, rng.randint(90, 210)])
        thread = rng.choice([None, STEP, FIRST, SECOND, OTHER_THREAD])
        each = kernel(start_ns, start_ns + rng.randint(0, 20), launch_ns)
        made.append(each._replace(thread=thread, name=rng.choice("xyz")))
    of_step = [
        each
        for each in made
        if 100 <= (each.start_ns if each.launch_ns is None else each.launch_ns) < 200
    ]
    if not of_step:
        return
    found = use(*made, nodes=NODES)
    busy = {ns for each in of_step for ns in range(each.start_ns, each.end_ns)}
    assert found.kernels_ns == len(busy)
    counted: Counter[str] = Counter()
    for row in found.kernels:
        for found_kernel in row.kernels:
            counted[found_kernel.name] += found_kernel.calls
    assert counted == Counter(each.name for each in of_step)
    durations = sum(each.end_ns - each.start_ns for each in of_step)
    assert sum(row.busy_ns for row in found.kernels) == durations


def test_merged_profiles_have_the_step_that_is_known_best() -> None:
    steps = [
        None,
        DeviceStep(reason="no step was traced"),
        DeviceStep(4, 20),
        DeviceStep(4, 10, (DeviceUse("cuda:0", 5),)),
        DeviceStep(4, 11, (DeviceUse("cuda:0", 5),)),
    ]
    for some in permutations(steps, 3):
        found = ProfileData()
        for step in some:
            found = found.merge(ProfileData(device_step=step))
        best = max((step and steps.index(step)) or 0 for step in some)
        assert found.device_step == steps[best]
