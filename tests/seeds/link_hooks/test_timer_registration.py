"""Where timers are registered, and what they survive."""

from __future__ import annotations

import gc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Barrier
from types import FunctionType
from typing import Any

import pytest
import torch.nn.functional as F

from tests.functions import ONE, Cube, Runs, Tensors, raises, x
from tests.helpers import MyModel, close, in_thread, inputs, names, occurrences
from tests.seeds.link_hooks.planted import KINDS, Timed
from torchprof_hooks import (
    FunctionCall,
    LinkCall,
    add_hook,
    delete_hook,
    function_hooks,
    link_hooks,
)

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture(params=KINDS)
def timed(request: pytest.FixtureRequest) -> Timed:
    return KINDS[request.param]()


def test_a_hook_entered_again_goes_on_counting(timed: Timed) -> None:
    hook = timed.timer()
    for _ in range(2):
        with hook:
            timed.step(int)
        timed.step(int)  # not seen

    assert hook.call_history == timed.history * 2
    assert occurrences(hook) == Counter(timed.names * 2)


def test_two_timers_at_once_both_count(timed: Timed) -> None:
    second = timed.timer(by="module")
    second.name = "Second"
    with timed.timer() as outer:
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
    timed = KINDS["modules" if timer is AnnouncingLinks else "functions"]()
    announced.clear()
    with timer() as hook:
        timed.step(int)

    assert announced == PRES[timer]
    assert hook.call_history == timed.history


def test_threads_that_use_one_hook_are_added_up(timed: Timed) -> None:
    hook, together, steps = timed.timer(), Barrier(3, timeout=60), 20

    def work() -> None:
        with hook:
            together.wait()
            for _ in range(steps):
                timed.step(int)
            together.wait()

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(work) for _ in range(3)]:
            done.result()

    assert occurrences(hook) == Counter(names(hook)) == Counter(timed.names * 3 * steps)


def test_a_hook_on_one_target_counts_only_its_calls(timed: Timed) -> None:
    hook = timed.timer()
    add_hook(timed.target, hook)
    timed.step(int)
    in_thread(lambda: timed.step(int))
    delete_hook(timed.target, "TimerHook")
    timed.step(int)

    assert hook.call_history == timed.local * 2
    assert hook.total_time() == close(2 * timed.local[0][1])


def test_a_timer_on_a_target_replaces_the_thread_wide_one_there(timed: Timed) -> None:
    local = timed.timer()
    add_hook(timed.target, local)
    with timed.timer() as everywhere:
        timed.step(int)
    delete_hook(timed.target, "TimerHook")

    assert local.call_history == timed.local
    rest = [call for call in timed.history if call != timed.local[0]]
    assert everywhere.call_history == rest
    assert everywhere.total_time() == close(timed.total)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("local", [False, True])
def test_a_call_that_raises_does_not_spoil_the_next(
    timed: Timed, error: type[BaseException], local: bool
) -> None:
    hook = timed.timer()
    with nullcontext() if local else hook:
        if local:
            add_hook(timed.target, hook)
        with pytest.raises(error):
            timed.step(raises(error))
        timed.step(int)
    if local:
        delete_hook(timed.target, "TimerHook")

    expected = timed.local if local else timed.history
    assert hook.call_history[-len(expected) :] == expected


def test_a_backward_that_raises_does_not_spoil_the_next_step() -> None:
    timed = KINDS["functions"]()
    with timed.timer() as hook:
        with pytest.raises(RuntimeError):
            Runs.apply(x(), int, raises(RuntimeError)).sum().backward(ONE)
        before = len(hook.call_history)
        timed.step(int)

    assert hook.call_history[before:] == timed.history


def test_hooks_on_a_torch_function_and_on_a_node() -> None:
    on_function: Any = function_hooks.TimerHook(phases=True)
    on_node: Any = function_hooks.TimerHook()
    add_hook(F.linear, on_function)
    hidden = F.linear(x(), x(3, 3))
    add_hook(hidden.grad_fn, on_node)
    Cube.apply(hidden).sum().backward(ONE)
    delete_hook(F.linear, "TimerHook")
    F.linear(x(), x(3, 3))

    assert names(on_function) == ["linear", "linear"]
    assert names(on_node) == [type(hidden.grad_fn).__name__]


class Second(link_hooks.TimerHook):
    name = "Second"


def test_hooks_that_come_and_go_leave_nothing_with_a_thread_wide_one() -> None:
    """Which looks at the module anew each time, and is to hear when it is gone."""
    model = MyModel()

    def kept() -> int:
        gc.collect()
        return sum(type(each) is FunctionType for each in gc.get_objects())

    with link_hooks.TimerHook() as everywhere:
        for _ in range(3):  # what is kept of the first
            before = kept()
            for _ in range(20):
                add_hook(model, Second())
                model(inputs())
                delete_hook(model, "Second")
                model(inputs())
        assert kept() - before < 20
    assert occurrences(everywhere)["MyModel"] == 120
