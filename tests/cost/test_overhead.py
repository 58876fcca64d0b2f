"""What measuring costs: whose time it is in, how much it is, and the trial that tells
what calls take."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from tests.cores import PYTHON_CORE
from tests.fake_clock import MS, FakeClock, Trials, burn
from tests.functions import ONE, Watching
from tests.helpers import SteadyMemory, counted_by, timed_by
from tests.planted import Work
from torchprof_hooks import Profile, profile
from torchprof_hooks.capture import overhead
from torchprof_hooks.capture.functions import aside
from torchprof_hooks.capture.overhead import COLD, Costs
from torchprof_hooks.capture.torch_names.autograd import run_engine
from torchprof_hooks.capture.tracking.meters import device as device_meters
from torchprof_hooks.measure.allocator_counter import Reading
from torchprof_hooks.measure.device_clock import EventClock
from torchprof_hooks.profiles.names import PROFILER_NAME

X = torch.ones(2, 4)
PROFILER = ((PROFILER_NAME,), "profiler")
OUTSIDE = (("(outside modules)",), "outside")


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch is built for a device, its clock is read as well."""
    monkeypatch.setattr(device_meters, "default_device_clock", lambda: None)


@pytest.fixture
def costing(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Says what the trial has found, in milliseconds."""

    def use(call: float = 0, node: float = 0, function: float = 0) -> None:
        found = Costs(*(each * MS / COLD for each in (call, node, function)))
        monkeypatch.setattr(overhead, "_tried", lambda functions: found)

    use()
    return use


def times(found: Profile) -> dict[Any, float]:
    """In milliseconds, as far as there is some; they add up."""
    assert sum(totals.self_ns for totals in found.cells.values()) == found.wall_ns
    return {k: t.self_ns / MS for k, t in found.cells.items() if t.self_ns}


# Rows


class SlowClock(EventClock):
    """Each stamp takes a millisecond, and the device is always ready."""

    def stamp(self) -> Any:
        burn(1)
        return SimpleNamespace(device=0)

    def waits(self) -> bool:
        return False

    def wait(self, stamp: Any) -> None: ...

    def elapsed_ns(self, start: Any, end: Any) -> int:
        return 0


class SlowMemory(SteadyMemory):
    """Takes a millisecond for each reading."""

    def read(self) -> Reading:
        burn(1)
        return super().read()


def net() -> nn.Module:
    return nn.Sequential(Work(3, 5), nn.Linear(4, 4))


def work(*functions: str) -> dict[Any, float]:
    """The rows of the work in it, or of a function there."""
    path = ("Sequential", "Sequential.0", *functions)
    return {(path, "forward"): 3, (path, "backward"): 5}


@PYTHON_CORE
@pytest.mark.usefixtures("costing")
def test_readings_of_devices_are_the_profilers_and_rows_as_planted() -> None:
    with timed_by(SlowClock()), profile() as prof:
        net()(X).sum().backward()
    # Around each call; a pass, which begins and ends, and planning it; its boundaries.
    around = 2 * 3 + 2 + 2 + 4
    assert times(prof.profile) == {**work(), PROFILER: around}
    assert prof.profile.overhead_ns == around * MS


@pytest.mark.usefixtures("costing")
def test_readings_of_memory_are_the_profilers_and_rows_as_planted() -> None:
    with counted_by(SlowMemory()), profile(functions=True, memory=True) as prof:
        net()(X).sum().backward()
    found = times(prof.profile)
    # Two around each call: of modules, functions in them, and one in a function.
    assert found.pop(PROFILER) >= 2 * (3 + 1 + 2 + 1)
    assert found == work("_Burning(2x4, scalar)")


@pytest.mark.usefixtures("costing", "ticking")
@pytest.mark.parametrize("functions", [False, True])
@pytest.mark.parametrize("memory", [False, True])
def test_what_is_timed_is_the_profilers(functions: bool, memory: bool) -> None:
    model, counted = net(), counted_by(SteadyMemory())
    with counted, profile(functions=functions, memory=memory) as prof:
        for _ in range(9):
            model(X).sum().backward()
    assert times(prof.profile)[PROFILER] == prof.profile.overhead_ns / MS > 0


def test_rows_of_modules_are_as_measured(costing: Callable[..., None]) -> None:
    costing(call=99, node=99)
    with profile() as prof:
        net()(X).sum().backward()
    assert times(prof.profile) == work()
    assert prof.profile.overhead_ns > 2 * 99 * MS


class Calls(nn.Module):
    """Works for 10 ms, and calls three functions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        burn(10)
        return x.neg().abs().neg()


@PYTHON_CORE  # for the other, they cost nobody's time worth telling
@pytest.mark.parametrize(
    ("function", "own", "outside"),
    [
        (0, 10, 5),
        (2, 10 - 3 * 2, 5 - 2),
        (4, 0, 5 - 4),  # not less than nothing
        (99, 0, 0),
    ],
)
def test_calls_of_functions_cost_the_row_around_them(
    costing: Callable[..., None], function: float, own: float, outside: float
) -> None:
    costing(call=50, function=function)
    model = nn.Sequential(Calls())
    with profile(functions=True) as prof:
        for _ in range(4):
            model(X)
            burn(5)
            X.exp()
    expected = {
        (("Sequential", "Sequential.0"), "forward"): 4 * own,
        OUTSIDE: 4 * outside,
        PROFILER: 4 * (15 - own - outside),
    }
    assert times(prof.profile) == {key: ms for key, ms in expected.items() if ms}
    assert prof.profile.overhead_ns == 4 * (2 * 50 + 4 * function) * MS


@PYTHON_CORE
def test_functions_in_functions_cost_the_outer_one(
    costing: Callable[..., None],
) -> None:
    costing(function=1)
    with profile(functions=True) as prof:
        Work(7)(X)
    assert times(prof.profile) == {
        (("Work", "_Burning(2x4, scalar)"), "forward"): 7 - 1,  # which multiplies
        PROFILER: 1,
    }


@PYTHON_CORE
def test_the_start_up_has_its_share_of_what_is_the_profilers(
    costing: Callable[..., None],
) -> None:
    costing(function=2)
    model = nn.Sequential(Calls(), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with profile(functions=True) as prof:
        for _ in range(4):
            model(X).sum().backward()
            optimizer.step()
    start_up, loop = (
        times(found) for found in (prof.profile.start_up, prof.profile.loop)
    )
    assert loop[PROFILER] == 3 * start_up[PROFILER] >= 3 * 3 * 2
    assert sum(loop.values()) == 3 * sum(start_up.values()) == 3 * 10


# How much it is


def test_what_measuring_took_grows_with_calls_and_nodes(
    costing: Callable[..., None],
) -> None:
    costing(call=1, node=1000)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def took_ms(passes: int) -> float:
        with profile() as prof:
            for _ in range(7):
                model(X)
            for _ in range(passes):
                model(X).sum().backward()
        return prof.profile.overhead_ns / MS

    assert divmod(took_ms(0), 1000) == (0, 7 * 3)
    nodes, calls = divmod(took_ms(5), 1000)
    assert (calls, nodes % 5) == (12 * 3, 0)
    assert nodes >= 5 * 2


def test_nothing_is_tried_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(functions: bool) -> Costs:
        raise AssertionError

    monkeypatch.setattr(overhead, "_tried", fail)
    with profile(functions=True) as prof:
        pass
    assert prof.profile.overhead_ns == 0


# The trial


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One for each round, in a process that has not tried yet."""
    found = list[object]()

    def count(*args: torch.Tensor) -> None:
        found.append(args)
        run_engine(*args)

    monkeypatch.setattr(overhead, "run_engine", count)
    monkeypatch.setattr(overhead, "_tried", cache(overhead._tried.__wrapped__))
    return found


@pytest.mark.parametrize(("functions", "times_"), [(False, 2), (True, 3)])
def test_it_is_short_and_made_once(
    functions: bool, times_: int, rounds: list[object]
) -> None:
    for _ in range(3):
        with profile(functions=functions) as prof:
            nn.Linear(4, 4)(X)
        assert prof.profile.wall_ns
    assert len(rounds) == times_ * overhead._ROUNDS <= 18


def test_it_sees_what_measuring_costs(
    ticking: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trials, "known", {})  # those of other tests were made elsewhere
    found = overhead.costs(functions=True)
    assert found.call_ns >= COLD * 1_000  # calls read the clock, which takes so long
    assert found.function_ns >= COLD * 1_000
    assert found.node_ns >= 0
    assert overhead.costs(functions=False) == found._replace(function_ns=0)
    ticking.cost_per_reading_ns = 2_000
    assert overhead.costs(functions=True) == Costs(*(2 * each for each in found))


def test_if_it_fails_costs_are_zero(
    rounds: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        rounds.append(None)
        raise RuntimeError("no engine")

    monkeypatch.setattr(overhead, "run_engine", fail)
    for _ in range(2):
        with profile(functions=True) as prof:
            nn.Linear(4, 4)(X)
        assert prof.profile.cells[("Linear",), "forward"].calls == 1
    assert overhead.costs(functions=True) == Costs(0, 0, 0)
    assert len(rounds) == 1


class SeenOperators(TorchDispatchMode):
    def __init__(self, seen: list[object]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@contextmanager
def observed(seen: list[object], is_ending: bool) -> Iterator[None]:
    """Somebody sees what this thread does, and which modules are called at all."""

    def see(kept: torch.Tensor) -> torch.Tensor:
        seen.append(kept)
        return kept

    with ExitStack() as stack:
        for register in (
            register_module_forward_pre_hook,
            register_module_forward_hook,
        ):
            stack.callback(register(lambda *args: seen.append(args)).remove)
        functions = Watching()
        functions.seen = seen
        stack.enter_context(functions)
        if not is_ending:  # then it has to be this thread, and these would see it
            stack.enter_context(SeenOperators(seen))
            stack.enter_context(saved_tensors_hooks(see, lambda kept: kept))
        yield


def state() -> tuple[object, ...]:
    return (
        random.getstate(),
        torch.get_rng_state().tolist(),
        torch.is_grad_enabled(),
        torch._C._len_torch_function_stack(),
    )


@pytest.mark.parametrize("is_ending", [False, True])
def test_nobody_sees_it_and_it_changes_nothing(
    is_ending: bool, rounds: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a program that is measured, and observes itself; it may be ending
    if is_ending:
        monkeypatch.setattr(aside, "in_own_thread", lambda work: False)
    model, seen = nn.Linear(4, 4), list[object]()
    with profile(functions=True) as prof, observed(seen, is_ending):
        model(X).sum().backward(ONE)
        before = len(seen)

        # WHEN it is tried what measuring costs
        overhead.costs(functions=True)
        assert len(rounds) == 18

        # THEN nobody knows
        assert len(seen) == before > 0
        model(X)
        assert len(seen) > before
    cells = prof.profile.cells.items()
    calls = {path[-1]: t.calls for (path, phase), t in cells if phase == "forward"}
    assert calls == {"Linear": 2, "linear(2x4, 4x4, 4)": 2, "sum(2x4)": 1}
    assert prof.profile.steps == 1

    # and all is as it was
    trial: Any = overhead._tried
    trial.cache_clear()
    with torch.no_grad():
        state_before = state()
        overhead.costs(functions=True)
        assert state() == state_before
    assert len(rounds) == 2 * 18
