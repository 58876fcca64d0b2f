from __future__ import annotations

import io
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.capture.test_device_meter import FakeDevice
from tests.cores import PYTHON_CORE
from tests.fake_clock import FakeClock, burn
from tests.functions import ONE, Cube, Runs, x
from tests.helpers import close, timed_by
from torchprof_hooks import FunctionHook, add_hook, delete_hook
from torchprof_hooks.capture.core import CORE
from torchprof_hooks.documents.render.units import TIME_UNITS, format_time
from torchprof_hooks.function_hooks import TimerHook
from torchprof_hooks.measure.device_clock import EventClock
from torchprof_hooks.profiles.names import TimeUnit

pytestmark = pytest.mark.usefixtures("ticking")

#: Names in the history of one `step`, in the order in which calls end.
STEP = ["linear", "mul", "mul", "Cube", "sum", "sum", "Cube", "linear"]


def step() -> None:
    Cube.apply(F.linear(INPUT, WEIGHT)).sum().backward(ONE)


INPUT, WEIGHT = x(), x(5, 3)


def timed(steps: int = 2, **options: Any) -> TimerHook:
    with TimerHook(**options) as hook:
        for _ in range(steps):
            step()
    return hook


def names(hook: TimerHook) -> list[str]:
    return [name for name, _ in hook.call_history]


def occurrences(hook: TimerHook) -> dict[str, int]:
    return {name: sums["occurrence"] for name, sums in hook.summary().items()}


def test_names() -> None:
    assert TimerHook.name == TimerHook().name == "TimerHook"
    assert isinstance(TimerHook(), FunctionHook)


def test_history_is_in_the_order_in_which_calls_end() -> None:
    assert names(timed(steps=2)) == STEP * 2


def test_inner_calls_take_less_than_the_outer_one() -> None:
    history = timed(steps=2).call_history

    for first in (0, len(STEP)):
        (_, mul), (_, mul_again), (_, cube) = history[first + 1 : first + 4]
        assert 0 < mul + mul_again < cube


def test_summary_sums_up_the_history() -> None:
    hook = timed(steps=3)
    summary = hook.summary()

    assert list(summary) == ["linear", "mul", "Cube", "sum"]
    assert occurrences(hook) == Counter(names(hook))
    assert occurrences(hook) == {"linear": 6, "mul": 6, "Cube": 6, "sum": 6}
    for name, sums in summary.items():
        seconds = [s for called, s in hook.call_history if called == name]
        assert sums["elapsed_time"] == close(sum(seconds))
        assert set(sums) == {"elapsed_time", "occurrence"}


def test_total_time_counts_outermost_calls_only() -> None:
    hook = timed(steps=2)
    outermost = [seconds for name, seconds in hook.call_history if name != "mul"]

    assert hook.total_time() == close(sum(outermost))


def test_numbers_are_those_of_python() -> None:
    hook = timed(phases=True)

    seconds = [hook.total_time(), hook.call_history[0][1]]
    for sums in hook.summary().values():
        seconds += [sums["elapsed_time"], sums["backward_time"]]
    assert {type(value) for value in seconds} == {float}
    assert {type(count) for count in occurrences(hook).values()} == {int}


def test_a_hook_that_saw_nothing() -> None:
    hook, report = TimerHook(), io.StringIO()
    with hook:
        pass
    hook.print_report(file=report)

    assert (hook.call_history, hook.summary(), hook.total_time()) == ([], {}, 0)
    expected = "TimerHook: no function was called, there is nothing to report.\n"
    assert report.getvalue() == expected


def test_numbers_can_be_read_while_the_hook_is_active() -> None:
    seen: list[Any] = []
    with TimerHook() as hook:
        INPUT.exp()
        Runs.apply(INPUT, lambda: seen.append((names(hook), occurrences(hook))))

    assert seen == [(["exp"], {"exp": 1})]  # exp has ended, Runs has not
    assert names(hook) == ["exp", "clone", "Runs"]


def test_a_bounded_history_keeps_the_newest_calls() -> None:
    hook = timed(steps=3, history_size=5)

    assert names(hook) == STEP[-5:]
    assert occurrences(hook)["linear"] == 6


@pytest.mark.slow
def test_sums_are_exact_whatever_the_history_keeps() -> None:
    # 16,000 calls are more than are kept between two times that the sums are made.
    short, whole = TimerHook(history_size=10), TimerHook()
    whole.name = "whole"
    with short, whole:
        for _ in range(2000):
            step()

    assert names(short) == [*STEP[-2:], *STEP]
    assert occurrences(short) == occurrences(whole) == Counter(names(whole))
    assert occurrences(short)["mul"] == 4000
    for name, sums in whole.summary().items():
        seconds = [s for called, s in whole.call_history if called == name]
        assert sums["elapsed_time"] == close(sum(seconds))


def test_a_history_of_size_0_is_empty() -> None:
    hook = timed(steps=2, history_size=0)

    assert hook.call_history == []
    assert occurrences(hook)["linear"] == 4


def test_a_negative_history_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"history_size must be .* not -1"):
        TimerHook(history_size=-1)


# Phases, modules and calls


def test_phases_add_up() -> None:
    hook = timed(steps=2, phases=True)

    for name, sums in hook.summary().items():
        forward, backward = sums["forward_time"], sums["backward_time"]
        assert forward + backward == close(sums["elapsed_time"])
        assert forward > 0
        assert (backward > 0) == (name != "mul")
        assert sums["recompute_time"] == 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_a_phase(reentrant: bool) -> None:
    with TimerHook(phases=True) as hook:
        INPUT.cos()
        checkpoint(
            lambda t: t.exp().sin(), INPUT, use_reentrant=reentrant
        ).sum().backward(ONE)
    summary = hook.summary()

    # In forward, recomputed, and in backward. What a custom Function's backward calls
    # outside of modules, the native core does not tell apart from it.
    is_told = not (reentrant and CORE.module)
    assert occurrences(hook)["exp"] == occurrences(hook)["sin"] == (3 if is_told else 1)
    assert (summary["exp"]["recompute_time"] > 0) == is_told
    assert summary["cos"]["recompute_time"] == 0
    for sums in summary.values():
        phases = sums["forward_time"] + sums["backward_time"] + sums["recompute_time"]
        assert phases == close(sums["elapsed_time"])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.fc(x).relu() + self.fc(x.narrow(0, 0, 1))
        return result


def timed_net(**options: Any) -> TimerHook:
    net = Net()
    with TimerHook(**options) as hook:
        net(INPUT).sum().backward(ONE)
    return hook


def test_by_module() -> None:
    hook = timed_net(by="module")

    # linear twice; relu, x[:1] and +, twice each; sum. All of them with a backward, but
    # for x[:1]: INPUT is a leaf that needs gradients, so it has one, too.
    assert occurrences(hook) == {"Net.fc": 4, "Net": 6, "(outside modules)": 2}
    assert names(hook)[:2] == ["Net.fc", "Net"]


def test_by_call() -> None:
    hook = timed_net(by="call")

    assert occurrences(hook) == {
        "Net.fc: linear(2x3, 5x3, 5)": 2,
        "Net: relu(2x5)": 2,
        "Net: narrow(2x3)": 2,
        "Net.fc: linear(1x3, 5x3, 5)": 2,
        "Net: add(2x5, 1x5)": 2,
        "sum(2x5)": 2,
    }


@pytest.mark.parametrize("by", ["function", "module", "call"])
def test_however_calls_are_named_the_sums_are_those_of_the_history(by: Any) -> None:
    hook = timed_net(by=by, phases=True)

    assert occurrences(hook) == Counter(names(hook))
    for name, sums in hook.summary().items():
        seconds = [s for called, s in hook.call_history if called == name]
        assert sums["elapsed_time"] == close(sum(seconds))
    assert hook.total_time() == close(sum(s for _, s in hook.call_history))


def test_an_unknown_grouping_is_refused() -> None:
    message = "by must be 'function', 'module' or 'call', not 'class'"
    with pytest.raises(ValueError, match=message):
        TimerHook(by="class")  # type: ignore[arg-type]


@pytest.mark.parametrize("by", ["module", "call"])
@pytest.mark.parametrize("target", [F.linear, Cube])
def test_a_hook_on_one_function_cannot_tell_modules(target: Any, by: Any) -> None:
    hook = TimerHook(by=by)
    with pytest.raises(ValueError, match=f"by='{by}' needs the whole thread: use `wi"):
        add_hook(target, hook)
    with pytest.raises(KeyError):
        delete_hook(target, "TimerHook")


# Reports


@pytest.mark.parametrize("unit", TIME_UNITS)
def test_the_report_shows_the_summary(unit: TimeUnit) -> None:
    hook, report = timed(steps=2), io.StringIO()

    hook.print_report(unit=unit, file=report)

    rows = [
        [name, format_time(sums["elapsed_time"] * 1e9, unit), "4"]
        for name, sums in hook.summary().items()
    ]
    assert [line.split() for line in report.getvalue().splitlines()] == [
        ["FunctionName", "ElapsedTime", "Occurrence"],
        *rows,
    ]


@pytest.mark.parametrize("unit", ["auto", "auto_foreach"])
def test_the_report_chooses_units(
    unit: TimeUnit, capsys: pytest.CaptureFixture[str]
) -> None:
    timed(steps=2, phases=True).print_report(unit=unit)

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    times = ["ElapsedTime", "ForwardTime", "BackwardTime"]  # nothing was recomputed
    assert lines[0] == ["FunctionName", *times, "Occurrence"]
    assert [line[0] for line in lines[1:]] == ["linear", "mul", "Cube", "sum"]
    assert {line[-1] for line in lines[1:]} == {"4"}


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(
        ValueError, match="unit must be 'auto', 'auto_foreach', 'sec', "
    ):
        timed().print_report(unit="hours")  # type: ignore[arg-type]


# The truth


def test_planted_work_is_found(clock: FakeClock) -> None:
    clock.cost_per_reading_ns = 0
    with TimerHook(phases=True) as hook:
        for _ in range(2):
            Runs.apply(INPUT, lambda: burn(4), lambda: burn(6)).exp().sum().backward(
                ONE
            )
            burn(1)  # nobody's
    sums = hook.summary()
    assert sums["Runs"] == {
        "elapsed_time": 0.02,
        "forward_time": 0.008,
        "backward_time": 0.012,
        "recompute_time": 0.0,
        "occurrence": 4,
    }
    assert sums["exp"]["elapsed_time"] == sums["sum"]["elapsed_time"] == 0
    assert hook.total_time() == 0.02
    assert [seconds for name, seconds in hook.call_history if name == "Runs"] == [
        0.004,
        0.006,
    ] * 2


@PYTHON_CORE
def test_device_times_without_waiting_for_the_device() -> None:
    device = FakeDevice()

    def launch(milliseconds: float) -> Any:
        return lambda: device.launch(milliseconds)

    clock = EventClock(device, "fake")
    with timed_by(clock), TimerHook(phases=True) as hook:
        for _ in range(3):
            Runs.apply(INPUT, launch(1), launch(10)).sum().backward(ONE)
            device.launch(100)  # nobody's
        assert device.waits == 0

    sums = hook.summary()
    assert sums["Runs"]["device_time"] == close(3 * 0.011)
    assert sums["sum"]["device_time"] == 0
    report = io.StringIO()
    hook.print_report(unit="ms", file=report)
    header, *rows = (line.split() for line in report.getvalue().splitlines())
    assert header[:3] == ["FunctionName", "ElapsedTime", "DeviceTime"]
    assert [row[2] for row in rows] == ["0.00ms", "33.00ms", "0.00ms"]


@PYTHON_CORE
def test_device_time_of_nested_functions_counts_for_both() -> None:
    device = FakeDevice()
    with timed_by(EventClock(device, "fake")), TimerHook() as hook:
        Runs.apply(INPUT, lambda: (Runs.apply(INPUT, lambda: device.launch(3)),))

    assert hook.summary()["Runs"]["device_time"] == close(2 * 0.003)


@PYTHON_CORE
def test_no_device_time_where_the_device_is_not_in_use() -> None:
    device = FakeDevice()
    device.initialized = False
    with timed_by(EventClock(device, "fake")), TimerHook() as hook:
        step()

    assert device.events_made == 0
    assert not any("device_time" in sums for sums in hook.summary().values())


class Recomputes(torch.autograd.Function):
    """A function whose backward runs another one, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        burn(10)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        burn(100)
        with torch.enable_grad():
            inner = torch.ones(2, requires_grad=True)
            Planted.apply(inner).sum().backward(ONE)
        return grad


class Planted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        burn(1)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        burn(2)
        return grad


def test_total_time_counts_once_what_a_backward_recomputes(clock: FakeClock) -> None:
    clock.cost_per_reading_ns = 0
    given = torch.ones(2, requires_grad=True)
    with TimerHook() as hook:
        Recomputes.apply(given).sum().backward(ONE)
    # The native core does not tell apart what its backward calls.
    inside = 0.113 if CORE.module else 0.112
    assert hook.summary()["Recomputes"]["elapsed_time"] == pytest.approx(inside)
    assert hook.total_time() == pytest.approx(0.113)
