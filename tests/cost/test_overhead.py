"""What measuring costs: whose time it is in, and how much it is at least."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_pre_hook,
)

from tests.cores import NATIVE_CORE
from tests.fake_clock import MS, FakeClock, burn
from tests.helpers import SteadyMemory, counted_by
from tests.planted import Work
from torchprof_hooks import Profile, profile
from torchprof_hooks.instruments import devices as device_observers
from torchprof_hooks.instruments.functions.operators import OperatorCalls
from torchprof_hooks.kernel import overhead
from torchprof_hooks.kernel.steps import StepDetector
from torchprof_hooks.kernel.tree import CallTree
from torchprof_hooks.measure.memory_counter import MemoryReading
from torchprof_hooks.profiles.names import PROFILER_NAME

X = torch.ones(2, 4)
PROFILER = ((PROFILER_NAME,), "profiler")
OUTSIDE = (("(outside modules)",), "outside")


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch is built for a device, its clock is read as well."""
    monkeypatch.setattr(device_observers, "default_device_clock", lambda: None)


@pytest.fixture
def costing(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> Callable[[float], None]:
    """Says what a call costs, in milliseconds."""

    def use(call_ms: float) -> None:
        monkeypatch.setattr(overhead, "call_ns", lambda: call_ms * MS)

    use(0)
    return use


def times(found: Profile) -> dict[Any, float]:
    """In milliseconds, as far as there is some; they add up."""
    assert sum(totals.self_ns for totals in found.cells.values()) == found.wall_ns
    return {k: t.self_ns / MS for k, t in found.cells.items() if t.self_ns}


def slowed(cls: type, name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has a method take a millisecond. Gets its name each time."""
    method, calls = getattr(cls, name), list[str]()

    def slowly(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        burn(1)
        return method(*args, **kwargs)

    monkeypatch.setattr(cls, name, slowly)
    return calls


# Rows


class SlowMemory(SteadyMemory):
    """Takes a millisecond for each reading."""

    def read(self) -> MemoryReading:
        burn(1)
        return super().read()


def net() -> nn.Module:
    return nn.Sequential(Work(3, 5), nn.Linear(4, 4))


def work(*functions: str) -> dict[Any, float]:
    """The rows of the work in it, or of a function there."""
    path = ("Sequential", "Sequential.0", *functions)
    return {(path, "forward"): 3, (path, "backward"): 5}


@NATIVE_CORE
@pytest.mark.usefixtures("costing")
def test_readings_of_memory_are_time_of_the_caller() -> None:
    with counted_by(SlowMemory()), profile(memory=True) as prof:
        net()(X)
    # Before and after each call.
    sequential = ("Sequential",)
    assert times(prof.profile) == {
        OUTSIDE: 2,
        (sequential, "forward"): 2 * 2,
        ((*sequential, "Sequential.0"), "forward"): 3,
    }


@NATIVE_CORE
@pytest.mark.usefixtures("costing")
def test_finding_the_place_of_a_new_call_is_the_profilers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, found = net(), slowed(CallTree, "site_of_module", monkeypatch)
    found_too = slowed(OperatorCalls, "place", monkeypatch)
    with profile(functions=True) as prof:
        for _ in range(3):
            model(X).sum().backward()
    expected = {key: 3 * ms for key, ms in work("_Burning(2x4, scalar)").items()}
    assert len(found) == 3
    assert times(prof.profile) == {PROFILER: len(found + found_too), **expected}


@NATIVE_CORE
@pytest.mark.usefixtures("costing")
def test_the_end_of_a_step_is_the_profilers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters())
    done = slowed(StepDetector, "optimizer_stepped", monkeypatch)
    with profile() as prof:
        for _ in range(3):
            model(X).sum().backward()
            optimizer.step()
    expected = {key: 3 * ms for key, ms in work().items()}
    assert len(done) == 3
    assert times(prof.profile) == {PROFILER: 3, **expected}


@pytest.mark.usefixtures("costing", "ticking")
@pytest.mark.parametrize("functions", [False, True])
@pytest.mark.parametrize("memory", [False, True])
def test_the_row_of_the_profiler_is_what_is_counted(
    functions: bool, memory: bool
) -> None:
    model, counted = net(), counted_by(SteadyMemory())
    with counted, profile(functions=functions, memory=memory) as prof:
        for _ in range(9):
            model(X).sum().backward()
    assert times(prof.profile)[PROFILER] == prof.profile.overhead_ns / MS > 0


def test_rows_of_modules_are_as_measured(costing: Callable[..., None]) -> None:
    costing(99)
    with profile() as prof:
        net()(X).sum().backward()
    assert times(prof.profile) == work()
    assert prof.profile.overhead_ns > 2 * 99 * MS


# How much it is


def test_what_measuring_took_grows_with_calls_and_nodes(
    costing: Callable[..., None],
) -> None:
    costing(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def took_ms(passes: int) -> float:
        with profile() as prof:
            for _ in range(7):
                model(X)
            for _ in range(passes):
                model(X).sum().backward()
        return prof.profile.overhead_ns / MS

    assert took_ms(0) == 7 * 3
    nodes = took_ms(5) - 12 * 3
    assert nodes % 5 == 0
    assert nodes >= 5 * 2


def test_a_call_reads_the_clock_twice(ticking: FakeClock) -> None:
    assert overhead.call_ns() >= 2 * 1_000


def test_nobody_sees_how_it_is_found_out() -> None:
    seen = list[object]()
    model = nn.Linear(4, 4)
    with profile(functions=True) as prof:
        model(X)
        hook = register_module_forward_pre_hook(lambda *args: seen.append(args))
        try_again: Any = overhead.call_ns
        assert try_again.__wrapped__() > 0
        hook.remove()
    assert not seen
    assert [row.name for row in prof.profile.rows() if row.kind == "module"] == [
        "Linear"
    ]
