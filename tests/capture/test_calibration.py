"""What measuring costs on this machine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from tests.cores import NATIVE_CORE, PYTHON_CORE
from tests.fake_clock import MS, Calibrations, FakeClock, burn
from tests.functions import Watching
from tests.helpers import in_thread
from torchprof_hooks import Profile, profile
from torchprof_hooks.capture.core import CORE, python
from torchprof_hooks.capture.functions import aside
from torchprof_hooks.capture.functions.function_calls import FunctionCalls
from torchprof_hooks.capture.overhead import calibration
from torchprof_hooks.capture.overhead.calibration import (
    Calibration,
    CallCost,
    Costs,
    Kind,
    calibration_of,
)
from torchprof_hooks.capture.torch_names.module_calls import call_without_global_hooks
from torchprof_hooks.capture.tracking.make_tracker import new_tracker
from torchprof_hooks.capture.tracking.meters.memory import memory_counter, memory_meter
from torchprof_hooks.capture.tracking.meters.meters import Meters
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.profiles.data import ProfileData

pytestmark = pytest.mark.usefixtures("ticking")

X = torch.ones(2, 4)


@pytest.fixture
def uncalibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not measured anything yet."""
    monkeypatch.setattr(Calibrations, "known", {})


def functions(by_shapes: bool = False) -> Tracker:
    return new_tracker(functions=FunctionCalls(by_shapes=by_shapes))


def metering() -> Tracker:
    tracker = functions(by_shapes=True)
    tracker.meters, tracker.reads_meters = Meters(()), True
    return tracker


def metering_asleep() -> Tracker:
    tracker = functions(by_shapes=True)
    tracker.meters = Meters(())
    return tracker


TRACKERS: dict[str, Callable[[], Tracker]] = {
    "forward": lambda: new_tracker(backward=False),
    "backward": new_tracker,
    "functions": functions,
    "functions by shapes": lambda: functions(by_shapes=True),
    "meters that are asleep": metering_asleep,
    "meters": metering,
}


def check(tracker: Tracker, found: Calibration) -> None:
    """Nothing is below 0, and functions cost something only where they are seen."""
    assert found.passed_over_ns >= 0
    for costs in (found.warm, found.cold):
        assert min(*costs.call, *costs.function, *costs.python_function) >= 0
        assert min(costs.boundary_ns, costs.node_ns) >= 0
        if tracker.functions is None:
            assert not any(costs.function)
            assert not any(costs.python_function)


def is_whole(tracker: Tracker, found: Calibration) -> bool:
    """Whether there is a cost of all that such a tracker sees."""
    whole = True
    for costs in (found.warm, found.cold):
        whole &= sum(costs.call) > 0
        if tracker.backward is not None:
            in_backward = {"native": costs.node_ns, "python": costs.boundary_ns}
            whole &= in_backward[CORE.name] > 0
        if tracker.functions is not None:
            whole &= sum(costs.function) > 0 and sum(costs.python_function) > 0
    return whole


def whole_calibration_of(tracker: Tracker) -> Calibration:
    found = calibration_of(tracker)
    check(tracker, found)
    assert is_whole(tracker, found)
    return found


@pytest.mark.usefixtures("uncalibrated")
@pytest.mark.parametrize("kind", TRACKERS)
def test_what_it_costs_here(kind: str) -> None:
    tracker = TRACKERS[kind]()
    whole_calibration_of(tracker)
    assert not tracker.log.spans  # it is another one that was tried


@NATIVE_CORE
@pytest.mark.usefixtures("uncalibrated")
@pytest.mark.parametrize("by_functions", [False, True])
def test_reading_the_memory_of_tensors_is_a_part_of_a_call(by_functions: bool) -> None:
    tracker = new_tracker(
        functions=FunctionCalls(by_shapes=True) if by_functions else None,
        meters=[memory_meter(memory_counter("cpu"))],
    )
    assert calibration._kind_of(tracker) == Kind(
        functions=by_functions, by_shapes=by_functions, tensors=True
    )
    whole_calibration_of(tracker)


@pytest.fixture
def really_uncalibrated(ticking: FakeClock) -> Iterator[None]:
    """The same for the package's own memory of it."""
    replacement: Any = calibration._in_a_thread
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "_in_a_thread", replacement.original)
        calibration._in_a_thread.cache_clear()
        yield
        calibration._in_a_thread.cache_clear()


@pytest.mark.usefixtures("really_uncalibrated")
def test_it_is_measured_once_for_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Kind] = []

    def measure(kind: Kind) -> Calibration:
        measured.append(kind)
        costs = Costs(CallCost(1, 2), 3)
        return Calibration(costs, costs)

    monkeypatch.setattr(calibration, "_measure", measure)
    for _ in range(2):
        for make in TRACKERS.values():
            calibration_of(make())
        in_thread(lambda: calibration_of(new_tracker()))
    assert measured == [
        Kind(backward=False),
        Kind(),
        Kind(functions=True),
        Kind(functions=True, by_shapes=True),
        Kind(functions=True, by_shapes=True, meters=True),
    ]


def calls(found: ProfileData) -> dict[str, int]:
    """Of all that was called, in all phases."""
    counted = {
        row.name: sum(totals.calls for totals in row.phases.values())
        for row in found.rows("call")
    }
    return {name: count for name, count in counted.items() if count}


@pytest.mark.usefixtures("uncalibrated")
def test_a_program_that_gets_no_more_threads_does_not_see_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Since Python 3.12, one that is ending, whose profile is read as it goes on."""
    monkeypatch.setattr(aside, "in_own_thread", lambda work: False)
    model = nn.Linear(4, 4)

    def train() -> None:
        for _ in range(2):
            model(X).sum().backward()

    with profile(functions=True) as prof:
        train()
        before = calls(prof.profile)
        assert calls(prof.profile) == before
        train()  # is seen again
    assert calls(prof.profile) == {name: 2 * count for name, count in before.items()}


@pytest.mark.usefixtures("uncalibrated")
def test_no_random_numbers_are_drawn() -> None:
    before = torch.get_rng_state()
    calibration_of(functions())
    assert torch.equal(torch.get_rng_state(), before)


def default_dtype(dtype: torch.dtype) -> AbstractContextManager[None]:
    stack = ExitStack()
    stack.callback(torch.set_default_dtype, torch.get_default_dtype())
    torch.set_default_dtype(dtype)
    return stack  # type: ignore[return-value]


def forget_default_device() -> None:
    """As if none had ever been set: torch 2.8 cannot tell any more which one is there
    once one was set and is set no more."""
    torch.set_default_device(None)
    with contextlib.suppress(AttributeError):
        del torch._GLOBAL_DEVICE_CONTEXT.device_context


def default_device(name: str) -> AbstractContextManager[None]:
    stack = ExitStack()
    stack.callback(forget_default_device)
    torch.set_default_device(name)
    return stack  # type: ignore[return-value]


STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default dtype": lambda: default_dtype(torch.float64),
    "default device": lambda: default_device("meta"),
    "device": lambda: torch.device("meta"),
    "anomalies": torch.autograd.detect_anomaly,
    "being measured": lambda: profile(functions=True, memory=True),
}


def what_is_set() -> tuple[object, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch._C._len_torch_function_stack(),
        len(torch_module._global_forward_hooks),
    )


@pytest.mark.usefixtures("uncalibrated")
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", ["backward", "functions"])
def test_whatever_the_program_has_set(kind: str, state: str) -> None:
    tracker = TRACKERS[kind]()
    modes = torch._C._len_torch_function_stack()
    with STATES[state]() as entered:
        before = what_is_set()
        whole_calibration_of(tracker)
        assert before == what_is_set()
    assert torch._C._len_torch_function_stack() == modes
    if state == "being measured":
        assert entered.profile.is_empty  # the trial was not seen


@pytest.mark.usefixtures("uncalibrated")
def test_hooks_of_the_program_do_not_see_it() -> None:
    seen: list[str] = []

    def note(module: nn.Module, *rest: object) -> None:
        seen.append(type(module).__name__)

    handles = [
        torch_module.register_module_forward_pre_hook(note),
        torch_module.register_module_forward_hook(note),
        torch_module.register_module_full_backward_hook(note),
    ]
    try:
        whole_calibration_of(functions())
    finally:
        for handle in handles:
            handle.remove()
    assert not seen


@pytest.mark.slow
@pytest.mark.usefixtures("uncalibrated")
def test_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a program has ended, in some versions of Python."""

    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", fail)
    # The program's modes do not see it, nor do those of its trackers.
    with Watching() as mode:
        for make in TRACKERS.values():
            whole_calibration_of(make())
        assert not mode.seen
        torch.neg(X)
    assert mode.seen == [torch.neg]


# Whether it is right


#: What each look at whether the compiler is at work takes here: one before a call is
#: stamped, which is its caller's time, and one before the stamp of its end.
LOOK_NS = 3_000


@pytest.fixture
def slow_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    def look() -> bool:
        burn(LOOK_NS / MS)
        return False

    monkeypatch.setattr(python, "is_dynamo_compiling", look)


@PYTHON_CORE  # the native one does not look
@pytest.mark.usefixtures("uncalibrated", "slow_looks")
@pytest.mark.parametrize("kind", ["forward", "backward"])
def test_whose_time_it_is_in(kind: str, clock: FakeClock) -> None:
    clock.cost_per_reading_ns = 0
    found = calibration_of(TRACKERS[kind]())
    assert found.warm == found.cold == Costs(CallCost(LOOK_NS, LOOK_NS), 0)


@pytest.mark.usefixtures("uncalibrated")
def test_what_readings_of_the_clock_cost(clock: FakeClock) -> None:
    found = calibration_of(new_tracker())
    reading_ns = clock.cost_per_reading_ns
    # Two readings around a call, of which one is between its stamps, as it is between
    # those of the trial; and one at each boundary. The native core also reads it where
    # a node ends.
    node_ns = reading_ns if CORE.name == "native" else 0
    expected = Costs(CallCost(0, 2 * reading_ns), reading_ns, node_ns=node_ns)
    # How long hooks take is read from the machine's own clock.
    warm, cold = (costs._replace(hook_ns=0) for costs in (found.warm, found.cold))
    assert warm == cold == expected


class Parent(nn.Module):
    """Has children that take no time, and takes a millisecond itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Identity() for _ in range(20))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        burn(1)
        for child in self.inner:
            x = child(x)
        return x


@PYTHON_CORE
@pytest.mark.usefixtures("uncalibrated", "slow_looks")
def test_a_corrected_parent_of_many_takes_what_it_takes_without_us(
    clock: FakeClock,
) -> None:
    clock.cost_per_reading_ns = 0
    model = Parent()
    with profile() as prof:
        model(X)
    found = prof.profile
    assert cumulative_ns(found) == MS + (20 * 2 + 1) * LOOK_NS
    assert cumulative_ns(found.corrected()) == MS


def cumulative_ns(found: Profile) -> int:
    return sum(
        totals.self_ns
        for (path, _), totals in found.cells.items()
        if path[0] == "Parent"
    )


@pytest.mark.usefixtures("uncalibrated")
def test_a_cost_that_is_not_known_does_not_cost_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(kind: Kind) -> Calibration:
        raise ValueError("no")

    monkeypatch.setattr(calibration, "_measure", fail)
    with profile() as prof:
        nn.Linear(4, 4)(X)
    assert prof.profile.cells[("Linear",), "forward"].overhead_ns == 0


def test_what_programs_put_in_place_of_calls_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = nn.Module._call_impl

    def patched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "_call_impl", patched)
    assert call_without_global_hooks() is patched
