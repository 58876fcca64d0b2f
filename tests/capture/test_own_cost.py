"""Whose time what measuring costs is in, with costs made up; and what reports show."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from tests.cores import NATIVE_CORE
from tests.fake_clock import MS, FakeClock, burn
from tests.helpers import timed_by
from tests.planted import Work
from torchprof_hooks import Profile, profile, profiler
from torchprof_hooks.capture.core import CORE, hooks_of
from torchprof_hooks.capture.overhead import calibration
from torchprof_hooks.capture.overhead import overhead_model as own_cost
from torchprof_hooks.capture.overhead.calibration import (
    Calibration,
    CallCost,
    Costs,
    Kind,
)
from torchprof_hooks.capture.overhead.trial_runs import mean_hook_ns
from torchprof_hooks.capture.tracking.make_tracker import new_tracker
from torchprof_hooks.capture.tracking.meters.memory import NativeMemoryMeter
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.hooks import measuring
from torchprof_hooks.measure.memory_counter import CpuMemoryCounter, Reading
from torchprof_hooks.profiles.names import PROFILER_NAME, Phase
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.program.file_tools import main

# Of each, the number can be read from a sum; own costs are less than calls take.
CALL = CallCost(1, 1_000)
FUNCTION = CallCost(10, 100_000)
PYTHON = CallCost(100, 10_000_000)
BOUNDARY = 10**10
PASSED_OVER = 10**13

pytestmark = pytest.mark.usefixtures("ticking")


@pytest.fixture
def round_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Costs(CALL, BOUNDARY, FUNCTION, PYTHON), PASSED_OVER)


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch is built for a device, its clock is read as well."""
    monkeypatch.setattr(profiler, "default_device_clock", lambda: None)


def use(
    monkeypatch: pytest.MonkeyPatch, costs: Costs, passed_over_ns: float = 0
) -> None:
    both = Calibration(costs, costs, passed_over_ns)
    monkeypatch.setattr(own_cost, "calibration_of", lambda tracker: both)


def overheads(found: Profile) -> dict[tuple[str, Phase], int]:
    """Of what it is not 0 in."""
    return {
        (path[-1], phase): totals.overhead_ns
        for (path, phase), totals in found.cells.items()
        if totals.overhead_ns
    }


X = torch.ones(2, 4)
OUTSIDE: tuple[str, Phase] = ("(outside modules)", "outside")


def new_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


#: Of the model's three modules, and what calls them: finding out where a new call
#: belongs is timed, and takes one reading of the clock.
TICK = 1_000
PLACED: dict[tuple[str, Phase], float] = {
    ("Sequential", "forward"): 2 * TICK,
    OUTSIDE: TICK,
}
#: What an outermost call costs whoever makes it: its end is told, which is timed.
OUTERMOST = CALL.caller_ns + TICK
#: The same of a function: its name, its shapes, and how they are described.
PLACED_FUNCTION = 3 * TICK
#: What the first call of a function costs itself: what it returns is looked at.
SEEN_OUTPUTS = TICK
FORWARD: dict[tuple[str, Phase], float] = {
    ("Sequential", "forward"): CALL.own_ns + 2 * CALL.caller_ns,
    ("Sequential.0", "forward"): CALL.own_ns,
    ("Sequential.1", "forward"): CALL.own_ns,
    OUTSIDE: OUTERMOST,
}
BACKWARD: dict[tuple[str, Phase], float] = {
    ("Sequential.1", "backward"): BOUNDARY,
    ("Sequential.0", "backward"): BOUNDARY,
    # From the engine's own work to the node of the sum, and back from the modules.
    ("(backward outside modules)", "backward"): 2 * BOUNDARY,
}


#: What we do around a pass is timed: the clock, that a reading moves, is read so often
#: until the engine begins, and when it has ended.
AROUND_PASSES: dict[tuple[str, Phase], float] = {
    OUTSIDE: OUTERMOST + (4 if CORE.name == "native" else 7) * TICK
}


def with_placing(
    costs: dict[tuple[str, Phase], float],
    placed: dict[tuple[str, Phase], float] = PLACED,
) -> dict[tuple[str, Phase], float]:
    """What else measuring costs, with what it takes to find places."""
    return costs | {key: costs[key] + ns for key, ns in placed.items()}


# Whose time it is in


@pytest.mark.usefixtures("round_costs")
def test_calls_cost_themselves_and_their_callers() -> None:
    net = new_net()
    with profile() as prof, torch.no_grad():
        net(X)
    expected = with_placing(FORWARD)
    assert overheads(prof.profile) == expected
    assert prof.profile.overhead_ns == sum(expected.values())


@pytest.mark.parametrize(
    ("hook_ns", "own_ns", "caller_ns"),
    [
        (100, 5, 500),  # half of what they took in trials
        (200, 10, 1_000),
        (400, 15, 2_000),
        (600, 20, 3_000),
        (900, 30, 4_500),
        (9_000, 40, 6_000),  # they are held up by something else
    ],
)
def test_calls_cost_more_where_hooks_take_longer(
    hook_ns: float, own_ns: int, caller_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks_took(hook_ns, monkeypatch)
    net = new_net()
    for module in net:
        module.register_forward_pre_hook(work)
    with profile() as prof, torch.no_grad():
        net(X)
    assert overheads(prof.profile) == with_placing(
        {
            ("Sequential", "forward"): own_ns + 2 * caller_ns,
            ("Sequential.0", "forward"): own_ns,
            ("Sequential.1", "forward"): own_ns,
            OUTSIDE: caller_ns + TICK,
        }
    )


def test_calls_cost_less_where_little_is_done_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hooks_took(600, monkeypatch)  # in the mean of the program
    small, large = new_net(), nn.Identity()
    large.register_forward_pre_hook(work)
    net = nn.Sequential(small, large)
    with profile() as prof, torch.no_grad():
        for _ in range(100):
            net(X)
    found = overheads(prof.profile)
    called = 2 * TICK  # finding their places
    assert found["Sequential", "forward"] == 100 * (20 + 2 * 3_000) + called
    of_small = found["Sequential.0", "forward"] - called
    assert of_small == pytest.approx(100 * (20 + 2 * 1_000), rel=0.1)


def work(*_: object) -> None:
    burn(1)


def hooks_took(hook_ns: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """So long in the program; in trials, 200 or 600 ns."""
    warm = Costs(CallCost(10, 1_000), BOUNDARY, hook_ns=200)
    cold = Costs(CallCost(20, 3_000), BOUNDARY, hook_ns=600)
    found = Calibration(warm, cold)
    monkeypatch.setattr(own_cost, "calibration_of", lambda tracker: found)
    monkeypatch.setattr(own_cost, "mean_hook_ns", lambda tracker: hook_ns)


@NATIVE_CORE
def test_how_long_hooks_take_is_seen_in_calls_inside_of_others() -> None:
    tracker = new_tracker()
    pre, post = hooks_of(tracker)
    net = nn.Sequential(*(nn.Identity() for _ in range(9)))
    for module in net.modules():
        module.register_forward_pre_hook(pre)
        module.register_forward_hook(post)
    assert mean_hook_ns(tracker) == 0
    for _ in range(3):
        net(X)
    timed = tracker.hooks_timed
    assert 9 <= timed <= 3 * 2 * 9
    assert 0 < mean_hook_ns(tracker) < MS
    for _ in range(9):
        net[0](X)
    assert tracker.hooks_timed == timed


@pytest.mark.usefixtures("round_costs")
def test_each_call_counts() -> None:
    net = new_net()
    with profile() as prof, torch.no_grad():
        for _ in range(7):
            net(X)
    of_calls = {key: 7 * ns for key, ns in FORWARD.items()}
    assert overheads(prof.profile) == with_placing(of_calls)


@pytest.mark.usefixtures("round_costs")
def test_boundaries_in_backward_cost_whom_they_lead_to() -> None:
    net = new_net()
    with profile() as prof:
        net(X).sum().backward()
    found = prof.profile
    expected = with_placing(FORWARD | BACKWARD | AROUND_PASSES)
    assert overheads(found) == expected
    planning = found.cells.get(((PROFILER_NAME,), "profiler"), Totals())
    planning_ns = planning.self_ns  # none with the native core
    assert found.overhead_ns == sum(expected.values()) + planning_ns


@NATIVE_CORE  # the one in Python hears of boundaries alone
def test_nodes_of_backward_that_the_core_hears_of_cost_whose_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node_ns = 10**9
    use(monkeypatch, Costs(CallCost(), 0, node_ns=node_ns))
    net = new_net()
    with profile() as prof:
        net(X).sum().backward()
    found = {
        name: ns // node_ns
        for (name, phase), ns in overheads(prof.profile).items()
        if phase == "backward" and ns >= node_ns
    }
    # A linear layer: its product, its transposed weight, and two gradients to be kept.
    assert found == {
        "(backward outside modules)": 1,
        "Sequential.1": 1,
        "Sequential.0": 4,
    }


@pytest.mark.usefixtures("round_costs")
def test_recomputing_is_calling_again() -> None:
    net = new_net()
    with profile() as prof:
        x = X.clone().requires_grad_()
        checkpoint(net, x, use_reentrant=False).sum().backward()
    found = overheads(prof.profile)
    again: dict[tuple[str, Phase], float] = {
        (name, "recompute"): ns for (name, _), ns in FORWARD.items()
    }
    # What calls the outermost module again is a part of its recompute; what asks for it
    # pays for booking its end.
    again["Sequential", "recompute"] += again.pop((OUTSIDE[0], "recompute")) - TICK
    asking = [(name, phase) for name, phase in found if phase == "backward"]
    assert sum(found[key] for key in asking) == 4 * BOUNDARY + TICK
    rest = {key: ns for key, ns in found.items() if key not in asking}
    placed_again: dict[tuple[str, Phase], float] = {
        ("Sequential", "recompute"): sum(PLACED.values())
    }
    assert rest == with_placing(
        {**FORWARD, **again, **AROUND_PASSES}, PLACED | placed_again
    )


@pytest.mark.usefixtures("round_costs")
def test_optimizers_and_batches_cost_what_calls_do() -> None:
    net = new_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with profile() as prof:
        for _ in range(3):
            optimizer.step()
        for _ in DataLoader([1, 2], batch_size=1):  # type: ignore[arg-type]
            pass
    found = overheads(prof.profile)
    assert found["(optimizer) SGD", "optimizer"] == 3 * CALL.own_ns
    waits, rest = divmod(found["(data loading)", "data"], CALL.own_ns)
    assert (waits >= 2, rest) == (True, 0)
    # What we do around steps of optimizers is timed: three readings of the clock more.
    # Steps of the program end as well; after the first, all is read.
    assert found[OUTSIDE] == (3 + waits) * OUTERMOST + 3 * (3 + 1) * TICK + 2 * TICK


@pytest.mark.usefixtures("round_costs")
def test_the_first_step_has_its_share_of_costs_outside_of_calls() -> None:
    net = new_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with profile() as prof:
        for _ in range(4):
            burn(1)  # there is time for all costs
            net(X)
            optimizer.step()
    whole, first = (
        overheads(p)[OUTSIDE] for p in (prof.profile, prof.profile.start_up)
    )
    assert first == whole // 4


@pytest.mark.usefixtures("round_costs")
def test_functions_compiled_and_in_python() -> None:
    with profile(functions=True) as prof:
        torch.neg(X)
        torch.neg(X)
        F.relu(X)  # calls torch.relu, which is not seen
        _ = X.shape, X.dtype, X.dim()
    called_ns = 2 * FUNCTION.caller_ns + PYTHON.caller_ns + 3 * PASSED_OVER
    assert overheads(prof.profile) == {
        ("neg(2x4)", "forward"): 2 * FUNCTION.own_ns + SEEN_OUTPUTS,
        ("relu(2x4)", "forward"): PYTHON.own_ns + SEEN_OUTPUTS,
        OUTSIDE: called_ns + 2 * PLACED_FUNCTION,
    }


@pytest.mark.usefixtures("round_costs")
def test_functions_in_modules() -> None:
    net = new_net()
    with profile(functions=True) as prof:
        net(X)
    found = overheads(prof.profile)
    outside_ns = found.pop(OUTSIDE)
    assert outside_ns % PASSED_OVER == OUTERMOST + TICK
    linear = ("linear(2x4, 4x4, 4)", "forward")
    of_functions = FUNCTION.caller_ns + PLACED_FUNCTION
    in_python = PYTHON.caller_ns + PLACED_FUNCTION
    assert found == {
        ("Sequential", "forward"): CALL.own_ns + 2 * (CALL.caller_ns + TICK),
        ("Sequential.0", "forward"): CALL.own_ns + of_functions,
        linear: FUNCTION.own_ns + SEEN_OUTPUTS,
        ("Sequential.1", "forward"): CALL.own_ns + in_python,
        ("relu(2x4)", "forward"): PYTHON.own_ns + SEEN_OUTPUTS,
    }


@NATIVE_CORE  # which reads memory itself, as a part of its hooks
@pytest.mark.usefixtures("round_costs")
def test_functions_and_memory_are_as_many_calls_as_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Counting a block is timed by the machine's own clock, where one is counted at all.
    monkeypatch.setattr(NativeMemoryMeter, "counting_ns", lambda self: 0.0)
    net = new_net()

    def measured(memory: bool) -> dict[tuple[str, Phase], int]:
        with profile(functions=True, memory=memory) as prof:
            net(X).sum().backward()
        return overheads(prof.profile)

    without = measured(memory=False)
    of_linear = without["linear(2x4, 4x4, 4)", "forward"]
    assert of_linear == FUNCTION.own_ns + SEEN_OUTPUTS
    assert measured(memory=True) == without


def test_what_functions_and_memory_together_cost_is_of_their_own_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds: list[Kind] = []

    def note(tracker: Tracker) -> Calibration:
        kinds.append(calibration._kind_of(tracker))
        return Calibration(Costs(CallCost(), 0), Costs(CallCost(), 0))

    monkeypatch.setattr(own_cost, "calibration_of", note)
    with profile(functions=True, memory=True) as prof:
        new_net()(X)
    assert not prof.profile.is_empty
    is_native = CORE.name == "native"
    assert kinds == [
        Kind(functions=True, by_shapes=True, meters=not is_native, tensors=is_native)
    ]


def test_what_a_call_cannot_have_cost_itself_is_in_its_callers_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN calls that take less than they are said to cost themselves
    use(monkeypatch, Costs(CallCost(10**10, 5), 0))
    net = new_net()

    # WHEN they are measured
    with profile() as prof, torch.no_grad():
        for _ in range(3):
            net(X)

    # THEN all of their own time is overhead, and the rest that of the calls around
    found = prof.profile
    own_ns = {path: totals.self_ns for (path, _), totals in found.cells.items()}
    inner = [("Sequential", "Sequential.0"), ("Sequential", "Sequential.1")]
    rest_ns = {path: 3 * (10**10 + 5) - own_ns[path] for path in own_ns}
    assert overheads(found) == {
        ("Sequential.0", "forward"): own_ns[inner[0]],
        ("Sequential.1", "forward"): own_ns[inner[1]],
        ("Sequential", "forward"): own_ns["Sequential",]
        + rest_ns[inner[0]]
        + rest_ns[inner[1]]
        + 2 * TICK,
        OUTSIDE: rest_ns["Sequential",] + (1 + 3) * TICK,
    }
    corrected = found.corrected()
    assert sum(t.self_ns for t in corrected.cells.values()) == found.wall_ns
    assert corrected.cells[(PROFILER_NAME,), "profiler"].self_ns == found.wall_ns


class SlowClock:
    """A device's clock, for whose stamps one has to wait."""

    name = "slow"

    def stamp(self) -> int:
        burn(1)
        return 0

    def is_done(self, stamp: int) -> bool:
        return True

    def wait(self, stamp: int) -> None: ...

    def elapsed_ns(self, start: int, end: int) -> int:
        return 0


def test_reading_meters_costs_callers(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.cost_per_reading_ns = 0
    use(monkeypatch, Costs(CallCost(), 0))
    net = nn.Sequential(Work(3, 5), nn.Linear(4, 4))
    with timed_by(SlowClock()), profile() as prof:
        loss = net(X).sum()
        forward = overheads(prof.profile)
        loss.backward()
    # Around each of the two inside, and around the outer one.
    assert forward == {("Sequential", "forward"): 4 * MS, OUTSIDE: 2 * MS}
    found = prof.profile
    # A pass begins and ends, planning it does, and there are four boundaries.
    planning = 2 if CORE.name == "python" else 0
    assert sum(overheads(found).values()) == (6 + 6 + planning) * MS
    assert found.wall_ns == (6 + 6 + planning + 3 + 5) * MS
    assert found.cells[("Sequential",), "forward"].self_ns == 4 * MS
    cells = {key: t.self_ns for key, t in found.corrected().cells.items() if t.self_ns}
    assert cells == {
        (("Sequential", "Sequential.0"), "forward"): 3 * MS,
        (("Sequential", "Sequential.0"), "backward"): 5 * MS,
        ((PROFILER_NAME,), "profiler"): (12 + planning) * MS,
    }


class SlowMemory(CpuMemoryCounter):
    """Takes a millisecond for each reading."""

    def read(self) -> Reading:
        burn(1)
        return super().read()


def test_readings_of_memory_are_taken_off_modules_and_functions(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.cost_per_reading_ns = 0
    use(monkeypatch, Costs(CallCost(), 0))
    monkeypatch.setattr(measuring, "memory_counter", lambda device: SlowMemory())
    net = nn.Sequential(Work(3, 5), nn.Linear(4, 4))
    with profile(functions=True, memory=True) as prof:
        loss = net(X).sum()
    forward = overheads(prof.profile)
    with prof:
        loss.backward()
    # Two around each call: of modules, of functions in them, and of one in a function.
    assert forward == {
        OUTSIDE: 2 * 2 * MS,
        ("Sequential", "forward"): 2 * 2 * MS,
        ("Sequential.0", "forward"): 2 * MS,
        ("_Burning(2x4, scalar)", "forward"): 2 * MS,
        ("Sequential.1", "forward"): 2 * MS,
    }
    found = prof.profile
    cells = {key: t.self_ns for key, t in found.corrected().cells.items() if t.self_ns}
    profiler_ns = cells.pop(((PROFILER_NAME,), "profiler"))
    work = ("Sequential", "Sequential.0", "_Burning(2x4, scalar)")
    assert cells == {(work, "forward"): 3 * MS, (work, "backward"): 5 * MS}
    assert profiler_ns == found.wall_ns - (3 + 5) * MS


@pytest.mark.parametrize("functions", [False, True])
def test_readings_of_memory_are_timed(
    functions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Costs(CallCost(), 0))
    # What the native core reads itself takes some nanoseconds, as the clock does.
    monkeypatch.setattr(measuring, "memory_counter", lambda device: CpuMemoryCounter())
    net = new_net()
    with profile(functions=functions, memory=True) as prof:
        net(X).sum().backward()
    found = overheads(prof.profile)
    assert found["Sequential", "forward"] > 0
    assert found[OUTSIDE] > 0
    assert (found.get(("Sequential.0", "forward"), 0) > 0) == functions


def test_nothing_is_calibrated_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(tracker: Tracker) -> Calibration:
        raise AssertionError

    monkeypatch.setattr(own_cost, "calibration_of", fail)
    with profile() as prof:
        pass
    assert prof.profile.overhead_ns == 0


# Reports


@pytest.mark.usefixtures("round_costs")
def test_reports_are_corrected_unless_asked_otherwise() -> None:
    net = new_net()
    with profile() as prof, torch.no_grad():
        net(X)
    found = prof.profile

    def printed(**options: Any) -> str:
        file = io.StringIO()
        prof.print_report(full=True, unit="ns", file=file, **options)
        return file.getvalue()

    assert (
        printed()
        == printed(corrected=True)
        == f"{found.corrected().report(full=True, unit='ns')}\n"
    )
    raw = found.report(full=True, unit="ns", corrected=False)
    assert printed(corrected=False) == f"{raw}\n"
    row = "\n(profiler overhead) "
    assert row in printed()
    assert row not in printed(corrected=False)


@pytest.mark.usefixtures("round_costs")
@pytest.mark.parametrize(
    "options",
    [
        ["--full"],
        ["--by", "module"],
        ["--format", "json"],
        ["--format", "csv", "--by", "class"],
        ["--format", "speedscope"],
        ["--format", "collapsed"],
    ],
)
def test_show_is_corrected_unless_asked_otherwise(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with profile() as prof, torch.no_grad():
        new_net()(X)
    path, corrected_path = tmp_path / "raw.json", tmp_path / "corrected.json"
    prof.profile.save(path)
    prof.profile.corrected().save(corrected_path)

    def shown(file: Path, *more: str) -> str:
        assert main(["show", str(file), *options, *more]) == 0
        return capsys.readouterr().out

    assert Profile.load(path) == prof.profile
    row = PROFILER_NAME if "--format" in options else "\n(profiler overhead) "
    assert row in shown(path)
    assert row not in shown(path, "--raw")
    assert shown(path) == shown(corrected_path) == shown(corrected_path, "--raw")


def test_a_report_of_a_program_is_as_it_was_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(tmp_path), "--format", "report", "--raw"]) == 2
    assert "--raw is not for --format report" in capsys.readouterr().err
