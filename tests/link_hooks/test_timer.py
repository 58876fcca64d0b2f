from __future__ import annotations

import io
from collections import Counter
from typing import Any

import pytest
from torch import nn

from tests.fake_clock import FakeClock, burn
from tests.helpers import MyModel, close, inputs, names, occurrences
from tests.planted import Work
from torchprof_hooks import LinkHook
from torchprof_hooks.documents.render.units import TIME_UNITS, format_time
from torchprof_hooks.link_hooks import TimerHook
from torchprof_hooks.profiles.names import TimeUnit

pytestmark = pytest.mark.usefixtures("ticking")


def timed(calls: int = 2, **options: Any) -> TimerHook:
    """A hook that has seen some calls of a model of two Linears."""
    model = MyModel()
    with TimerHook(**options) as hook:
        for _ in range(calls):
            model(inputs())
    return hook


def test_names() -> None:
    assert TimerHook.name == TimerHook().name == "TimerHook"
    assert LinkHook.name == "LinkHook"
    assert isinstance(TimerHook(), LinkHook)


def test_history_is_in_the_order_in_which_calls_end() -> None:
    assert names(timed(calls=2)) == ["Linear", "Linear", "MyModel"] * 2


def test_inner_calls_take_less_than_the_outer_one() -> None:
    history = timed(calls=2).call_history

    for first in (0, 3):
        (_, l1), (_, l2), (_, model) = history[first : first + 3]
        assert 0 < l1 + l2 < model


def test_summary_sums_up_the_history() -> None:
    hook = timed(calls=3)
    summary = hook.summary()

    assert list(summary) == ["Linear", "MyModel"]  # first calls ended in this order
    assert occurrences(hook) == Counter(names(hook)) == {"Linear": 6, "MyModel": 3}
    for name, sums in summary.items():
        seconds = [s for called, s in hook.call_history if called == name]
        assert sums["elapsed_time"] == close(sum(seconds))
        assert set(sums) == {"elapsed_time", "occurrence"}


def test_total_time_counts_outermost_calls_only() -> None:
    hook = timed(calls=2)
    outermost = [seconds for name, seconds in hook.call_history if name == "MyModel"]

    assert hook.total_time() == close(sum(outermost))


def test_numbers_are_those_of_python() -> None:
    hook = timed()

    seconds = [hook.total_time(), hook.call_history[0][1]]
    seconds += [sums["elapsed_time"] for sums in hook.summary().values()]
    assert {type(value) for value in seconds} == {float}
    assert {type(count) for count in occurrences(hook).values()} == {int}


def test_a_hook_that_saw_nothing() -> None:
    hook, report = TimerHook(), io.StringIO()
    with hook:
        pass
    hook.print_report(file=report)

    assert (hook.call_history, hook.summary(), hook.total_time()) == ([], {}, 0)
    assert "no module was called" in report.getvalue()


def test_numbers_can_be_read_while_the_hook_is_active() -> None:
    model = MyModel()
    with TimerHook() as hook:
        model.between = lambda: seen.append((names(hook), occurrences(hook)))
        seen: list[Any] = []
        model(inputs())

    assert seen == [(["Linear"], {"Linear": 1})]  # l1 has ended, the model has not


def test_a_bounded_history_keeps_the_newest_calls() -> None:
    model = MyModel()
    with TimerHook(history_size=10) as hook:
        model(inputs())
        nn.Sequential(*(nn.Identity() for _ in range(3)))(inputs())
        for _ in range(2):
            model(inputs())

    assert names(hook) == ["Identity"] * 3 + ["Sequential"] + ["Linear"] * 2 + [
        "MyModel",
        *["Linear"] * 2,
        "MyModel",
    ]


def test_sums_are_exact_whatever_the_history_keeps() -> None:
    # 6000 calls are more than are kept between two times that the sums are made.
    model = MyModel()
    short, whole = TimerHook(history_size=10), TimerHook()
    whole.name = "whole"
    with short, whole:
        for _ in range(2000):
            model(inputs())

    assert names(short) == ["MyModel", *["Linear", "Linear", "MyModel"] * 3]
    assert occurrences(short) == {"Linear": 4000, "MyModel": 2000}
    assert occurrences(whole) == Counter(names(whole))
    for name, sums in whole.summary().items():
        seconds = [s for called, s in whole.call_history if called == name]
        assert sums["elapsed_time"] == close(sum(seconds))


def test_a_history_of_size_0_is_empty() -> None:
    hook = timed(calls=2, history_size=0)

    assert hook.call_history == []
    assert occurrences(hook) == {"Linear": 4, "MyModel": 2}


def test_a_negative_history_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"history_size must be .* not -1"):
        TimerHook(history_size=-1)


def test_backward_takes_no_room_in_the_history() -> None:
    model = MyModel()
    with TimerHook(backward=True, history_size=6) as hook:
        for _ in range(2):
            model(inputs()).sum().backward()

    assert names(hook) == ["Linear", "Linear", "MyModel"] * 2


def test_qualified_names_can_be_asked_for() -> None:
    hook = timed(calls=2, by="module")

    assert names(hook) == ["MyModel.l1", "MyModel.l2", "MyModel"] * 2
    assert occurrences(hook) == {"MyModel.l1": 2, "MyModel.l2": 2, "MyModel": 2}


def test_an_unknown_grouping_is_refused() -> None:
    with pytest.raises(ValueError, match="by must be 'module' or 'class', not 'op'"):
        TimerHook(by="op")  # type: ignore[arg-type]


def test_backward_has_a_sum_of_its_own() -> None:
    model = MyModel()
    with TimerHook(backward=True) as hook:
        model(inputs()).sum().backward()
        nn.ReLU()(inputs())  # has no backward

    summary = hook.summary()
    assert occurrences(hook) == {"Linear": 2, "MyModel": 1, "ReLU": 1}
    assert names(hook) == ["Linear", "Linear", "MyModel", "ReLU"]
    assert 0 < summary["Linear"]["backward_time"] < summary["MyModel"]["backward_time"]
    assert summary["ReLU"]["backward_time"] == 0.0


def test_total_time_is_that_of_calls_also_with_backward() -> None:
    model = MyModel()
    with TimerHook(backward=True) as hook:
        model(inputs()).sum().backward()

    assert hook.total_time() == close(hook.summary()["MyModel"]["elapsed_time"])


def test_planted_work_is_found(clock: FakeClock) -> None:
    clock.cost_per_reading_ns = 0
    model = nn.Sequential(Work(4, 6), Work(1, 2))
    with TimerHook(backward=True, by="module") as hook:
        for _ in range(2):
            model(inputs()).sum().backward()
            burn(1)  # nobody's

    assert hook.summary() == {
        "Sequential.0": {
            "elapsed_time": 0.008,
            "backward_time": 0.012,
            "occurrence": 2,
        },
        "Sequential.1": {
            "elapsed_time": 0.002,
            "backward_time": 0.004,
            "occurrence": 2,
        },
        "Sequential": {"elapsed_time": 0.01, "backward_time": 0.016, "occurrence": 2},
    }
    assert hook.total_time() == 0.01
    assert [seconds for _, seconds in hook.call_history] == [0.004, 0.001, 0.005] * 2


@pytest.mark.parametrize("unit", TIME_UNITS)
def test_the_report_shows_the_summary(unit: TimeUnit) -> None:
    hook, report = timed(calls=2), io.StringIO()

    hook.print_report(unit=unit, file=report)

    linear, model = (
        format_time(sums["elapsed_time"] * 1e9, unit)
        for sums in hook.summary().values()
    )
    assert [line.split() for line in report.getvalue().splitlines()] == [
        ["LinkName", "ElapsedTime", "Occurrence"],
        ["Linear", linear, "4"],
        ["MyModel", model, "2"],
    ]


@pytest.mark.parametrize("unit", ["auto", "auto_foreach"])
def test_the_report_chooses_units(
    unit: TimeUnit, capsys: pytest.CaptureFixture[str]
) -> None:
    timed(calls=2, backward=True).print_report(unit=unit)

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["LinkName", "ElapsedTime", "BackwardTime", "Occurrence"]
    assert [(line[0], line[-1]) for line in lines[1:]] == [
        ("Linear", "4"),
        ("MyModel", "2"),
    ]


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(
        ValueError, match="unit must be 'auto', 'auto_foreach', 'sec', "
    ):
        timed().print_report(unit="hours")  # type: ignore[arg-type]
