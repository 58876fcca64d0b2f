"""Kernels of CUDA graphs that compiled code launched, planted in traces by hand."""

from __future__ import annotations

import pytest

from tests.profiles.test_device_idle import kernel
from tests.profiles.test_kernels import STEP, kernels
from torchprof_hooks.profiles.trace.device_step import find_device_step
from torchprof_hooks.profiles.trace.step_trace import (
    OTHER_THREAD,
    DeviceActivity,
    GraphCall,
    GraphLaunches,
    ModuleSpan,
    StepTrace,
)

#: The step, and the call of the compiled code in it.
MODULES = [ModuleSpan("Net", "Net", "forward", 105, 195)]


def calls(said: str) -> tuple[GraphCall, ...]:
    """Of modules: ``up relu=triton_relu ?op`` are a product, a kernel of Triton, and
    what may run nothing."""
    found = []
    for each in said.split():
        module, _, name = each.partition("=")
        path = "Net", f"Net.{module.removeprefix('?')}"
        found.append(GraphCall(name, not module.startswith("?"), path, "forward"))
    return tuple(found)


def graph(
    names: str, launch_ns: int = 110, thread: int | None = STEP
) -> list[DeviceActivity]:
    """What one launch has run, each for a nanosecond more than what was before."""
    times = zip(range(1, 10), names.split(), strict=False)
    return [
        kernel(launch_ns + n * n, launch_ns + n * n + n, launch_ns)._replace(
            name=name, thread=thread, of_graph=True
        )
        for n, name in times
    ]


def found(
    *ran: DeviceActivity, graphs: tuple[tuple[GraphCall, ...], ...]
) -> dict[str, int]:
    """Durations of kernels by module; "" is the compiled one."""
    trace = StepTrace(3, 1, STEP, 100, 200, MODULES, activities=list(ran))
    trace.launches.append(GraphLaunches(STEP, 106, 190, graphs))
    [use] = find_device_step(trace).devices
    return {
        module.removeprefix("Net").removeprefix("."): ns
        for (module, _), ns in kernels(use).items()
    }


@pytest.mark.parametrize(
    ("code", "ran", "expected"),
    [
        ("up act=t_act down", "gemm t_act gemm", {"up": 1, "act": 2, "down": 3}),
        # A product may run several, and fill memory before.
        (
            "up act=t_act down",
            "memset gemm t_act split sum",
            {"up": 1 + 2, "act": 3, "down": 4 + 5},
        ),
        ("act=t_act up down", "t_act gemm gemm", {"act": 1, "up": 2, "down": 3}),
        ("q k v", "gemm gemm gemm", {"q": 1, "k": 2, "v": 3}),
        # Whose are they?
        ("act=t_act up down", "t_act memset gemm gemm", {"act": 1, "": 9}),
        ("act=t_act up down norm=t_n", "t_act gemm t_n", {"act": 1, "": 2, "norm": 3}),
        ("?op up", "gemm gemm", {"": 3}),
        ("?op act=t_act", "gemm gemm t_act", {"op": 3, "act": 3}),
        ("act=t_act norm=t_n", "t_act fill t_n", {"act": 1, "": 2, "norm": 3}),
        # Not all of Triton's are there, or not in their order: nothing is divided.
        ("a=t_a up b=t_b", "t_b gemm t_a", {"": 6}),
        ("a=t_a up b=t_b", "t_a gemm", {"": 3}),
        ("a=t_a up a=t_a", "t_a gemm t_a t_a", {"": 10}),
        # One kernel of Triton's, several times.
        ("a=t_a up b=t_a", "t_a gemm t_a", {"a": 1, "up": 2, "b": 3}),
        ("", "gemm", {"": 1}),
    ],
)
def test_kernels_come_in_the_order_of_the_code(
    code: str, ran: str, expected: dict[str, int]
) -> None:
    assert found(*graph(ran), graphs=(calls(code),)) == expected


def test_launches_come_in_the_order_of_the_partitions() -> None:
    partitions = calls("up act=t_act"), calls("down")
    both = [*graph("gemm", 150), *graph("gemm t_act", 110)]
    assert found(*both, graphs=partitions) == {"up": 1, "act": 2, "down": 1}
    alone = kernel(160, 165, 120)._replace(name="t_act", thread=STEP)
    assert found(*both, alone, graphs=partitions)[""] == 5
    # One of them was not launched, or there is another graph: which is whose?
    assert found(*graph("gemm"), graphs=partitions) == {"": 1}
    assert found(*both, *graph("t_act", 180), graphs=partitions) == {"": 5}


def test_only_launches_by_the_code_are_of_its_graphs() -> None:
    graphs = (calls("up"),)
    assert found(*graph("gemm", 192), graphs=graphs) == {"": 1}
    other = {"(other threads)": 1}
    assert found(*graph("gemm", thread=OTHER_THREAD), graphs=graphs) == other
    assert found(*graph("gemm", thread=None), graphs=graphs) == {"up": 1}
