"""What timers have besides a history and sums (see `test_timers_and_memory`), and those
of modules."""

from __future__ import annotations

import io
from typing import Any

import pytest
from torch import nn

from tests.functions import Tensors
from tests.helpers import close, inputs, names
from tests.seeds.link_hooks.planted import TIMERS, Timed
from torchprof_hooks import (
    FunctionCall,
    LinkCall,
    add_hook,
    delete_hook,
    function_hooks,
    link_hooks,
)
from torchprof_hooks.link_hooks import TimerHook

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture(params=TIMERS)
def timed(request: pytest.FixtureRequest) -> Timed:
    return TIMERS[request.param]()


def test_reports(timed: Timed, capsys: pytest.CaptureFixture[str]) -> None:
    with timed.hook() as hook:
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


# Where they are registered


def test_two_timers_at_once_both_count(timed: Timed) -> None:
    second = timed.hook(by="module")
    second.name = "Second"
    with timed.hook() as outer:
        timed.step(int)
        with second as inner:
            timed.step(int)

    assert outer.call_history == timed.history * 2
    seconds = [seconds for _, seconds in inner.call_history]
    assert seconds == [seconds for _, seconds in timed.history]
    assert inner.total_time() == close(timed.total)


class AnnouncingLinks(link_hooks.TimerHook):
    def forward_preprocess(self, args: LinkCall) -> None:
        announced.append(args.path)


class AnnouncingFunctions(function_hooks.TimerHook):
    def forward_preprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        announced.append(function.name)


announced: list[str] = []
PRES = {
    AnnouncingLinks: ["Middle", "Middle.first", "Middle.last"],
    AnnouncingFunctions: ["Runs", "Inner", "clone", "clone", "sum"],
}


@pytest.mark.parametrize("timer", PRES)
def test_a_subclass_gets_callbacks_and_times(timer: Any) -> None:
    timed = TIMERS["modules" if timer is AnnouncingLinks else "functions"]()
    announced.clear()
    with timer() as hook:
        timed.step(int)

    assert announced == PRES[timer]
    assert hook.call_history == timed.history


def test_a_timer_on_a_target_replaces_the_thread_wide_one_there(timed: Timed) -> None:
    local = timed.hook()
    add_hook(timed.target, local)
    with timed.hook() as everywhere:
        timed.step(int)
    delete_hook(timed.target, "TimerHook")

    assert local.call_history == timed.local
    rest = [call for call in timed.history if call != timed.local[0]]
    assert everywhere.call_history == rest
    assert everywhere.total_time() == close(timed.total)


# Timers of modules


@pytest.mark.parametrize("by", ["class", "module"])
def test_backward_has_a_sum_of_its_own(
    by: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    timed = TIMERS["modules"]()
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
