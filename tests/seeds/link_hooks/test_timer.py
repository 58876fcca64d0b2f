"""What the timers of modules and of functions have in common, and those of modules."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import pytest
from torch import nn

from tests.fake_clock import burn
from tests.helpers import MyModel, close, inputs, names, occurrences
from tests.seeds.link_hooks.planted import KINDS, Timed
from torchprof_hooks import add_hook
from torchprof_hooks.link_hooks import TimerHook

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture(params=KINDS)
def timed(request: pytest.FixtureRequest) -> Timed:
    return KINDS[request.param]()


def test_planted_work_is_found(timed: Timed) -> None:
    with timed.timer() as hook:
        for _ in range(2):
            timed.step(int)
            burn(1)  # nobody's

    assert hook.call_history == timed.history * 2
    assert hook.total_time() == close(2 * timed.total)  # outermost calls only
    summary = hook.summary()
    assert list(summary) == list(dict.fromkeys(timed.names))
    assert occurrences(hook) == Counter(timed.names * 2)
    for name, sums in summary.items():
        seconds = [s for called, s in timed.history if called == name]
        assert sums["elapsed_time"] == close(2 * sum(seconds))
        assert {key: type(value) for key, value in sums.items()} == {
            "elapsed_time": float,  # and not of numpy's
            "occurrence": int,
        }


def test_a_hook_that_saw_nothing(timed: Timed) -> None:
    hook, report = timed.timer(), io.StringIO()
    with hook:
        pass
    hook.print_report(file=report)

    assert (hook.call_history, hook.summary(), hook.total_time()) == ([], {}, 0)
    called = "module" if isinstance(hook, TimerHook) else "function"
    expected = f"TimerHook: no {called} was called, there is nothing to report.\n"
    assert report.getvalue() == expected


def test_numbers_can_be_read_while_the_hook_is_active(timed: Timed) -> None:
    seen: list[Any] = []
    with timed.timer() as hook:
        timed.step(lambda: seen.append((names(hook), occurrences(hook))))

    ended = timed.names[: timed.history.index(timed.local[0]) + 1]
    assert seen == [(ended, Counter(ended))]  # the outer call has not ended


@pytest.mark.parametrize("history_size", [0, 4])
def test_a_bounded_history_keeps_the_newest_calls(
    timed: Timed, history_size: int
) -> None:
    # More calls than are kept between two times that the sums are made.
    steps = 4096 // len(timed.names) + 100 if history_size else 2
    with timed.timer(history_size=history_size) as hook:
        for _ in range(steps):
            timed.step(int)

    newest = (timed.history * 2)[-history_size:] if history_size else []
    assert hook.call_history == newest
    # Sums are exact all the same.
    assert occurrences(hook) == Counter(timed.names * steps)
    assert hook.total_time() == close(steps * timed.total)


def test_reports(timed: Timed, capsys: pytest.CaptureFixture[str]) -> None:
    with timed.timer() as hook:
        timed.step(int)

    hook.print_report()
    default = capsys.readouterr().out
    file = io.StringIO()
    hook.print_report(unit="us", file=file)
    assert [line.split() for line in default.splitlines()[1:]] == [
        [name, f"{1e3 * sums['elapsed_time']:.2f}ms", str(sums["occurrence"])]
        for name, sums in hook.summary().items()
    ]
    assert default.split()[1:3] == ["ElapsedTime", "Occurrence"]
    assert file.getvalue().split()[4].endswith("us")
    assert capsys.readouterr().out == ""


# Timers of modules


@pytest.mark.parametrize("by", ["class", "module"])
def test_backward_has_a_sum_of_its_own(
    by: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    timed = KINDS["modules"]()
    with TimerHook(backward=True, by=by, history_size=7) as hook:
        for _ in range(2):
            timed.step(int)
        nn.ReLU()(inputs())  # has no backward

    assert names(hook)[:3] == (
        ["Work", "Work", "Middle"]
        if by == "class"
        else ["Middle.first", "Middle.last", "Middle"]
    )
    assert len(hook.call_history) == 7  # of forwards: backward takes no room
    sums = {
        name: (close(s["elapsed_time"]), close(s["backward_time"]), s["occurrence"])
        for name, s in hook.summary().items()
    }
    of_parts = {"Work": (0.01, 0.016, 4)}
    if by == "module":
        of_parts = {"Middle.first": (0.008, 0.012, 2), "Middle.last": (0.002, 0.004, 2)}
    both = {"Middle": (0.01, 0.016, 2), "ReLU": (0, 0, 1)}
    assert sums == {**of_parts, **both}
    assert hook.total_time() == close(0.01)
    hook.print_report()
    assert capsys.readouterr().out.splitlines()[0].split() == [
        *["LinkName", "ElapsedTime", "BackwardTime", "Occurrence"]
    ]


def test_several_hooked_modules_inside_of_each_other() -> None:
    model, hook = MyModel(), TimerHook()
    model.between = lambda: burn(3)
    for module in model.modules():
        add_hook(module, hook)
    for _ in range(2):
        model(inputs())

    assert names(hook) == ["Linear", "Linear", "MyModel"] * 2
    assert hook.total_time() == close(0.006)  # nested calls count once
