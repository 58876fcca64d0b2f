from __future__ import annotations

import gc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Barrier
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers import MyModel, close, in_thread, inputs, names, occurrences
from torchprof_hooks import LinkCall, add_hook, delete_hook
from torchprof_hooks.link_hooks import TimerHook

pytestmark = pytest.mark.usefixtures("ticking")


def test_a_hook_entered_again_goes_on_counting() -> None:
    model, hook = MyModel(), TimerHook()
    for _ in range(2):
        with hook:
            model(inputs())
        model(inputs())  # not seen

    assert names(hook) == ["Linear", "Linear", "MyModel"] * 2
    assert occurrences(hook) == {"Linear": 4, "MyModel": 2}


class Second(TimerHook):
    name = "Second"


def test_two_timers_at_once_both_count() -> None:
    model = MyModel()
    with TimerHook() as outer:
        model(inputs())
        with Second(by="module") as inner:
            model(inputs())

    assert occurrences(outer) == {"Linear": 4, "MyModel": 2}
    assert occurrences(inner) == {"MyModel.l1": 1, "MyModel.l2": 1, "MyModel": 1}
    with (
        pytest.raises(KeyError, match="'TimerHook' already exists"),
        outer,
        TimerHook(),
    ):
        pass


class Announcing(TimerHook):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.announced: list[str] = []

    def forward_preprocess(self, args: LinkCall) -> None:
        self.announced.append(args.path)


@pytest.mark.parametrize("backward", [False, True])
def test_a_subclass_gets_callbacks_and_times(backward: bool) -> None:
    model = MyModel()
    with Announcing(backward=backward) as hook:
        model(inputs()).sum().backward()

    assert hook.announced == ["MyModel", "MyModel.l1", "MyModel.l2"]
    assert names(hook) == ["Linear", "Linear", "MyModel"]
    assert all(("backward_time" in s) == backward for s in hook.summary().values())


def test_threads_that_use_one_hook_are_added_up() -> None:
    model, hook, together = MyModel(), TimerHook(), Barrier(3, timeout=60)

    def work() -> None:
        with hook:
            together.wait()
            for _ in range(50):
                model(inputs())
            together.wait()

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(work) for _ in range(3)]:
            done.result()

    assert occurrences(hook) == {"Linear": 300, "MyModel": 150}  # 3 * 50 * (2 and 1)
    assert Counter(names(hook)) == {"Linear": 300, "MyModel": 150}
    models = [seconds for name, seconds in hook.call_history if name == "MyModel"]
    assert hook.total_time() == close(sum(models))


def test_a_thread_that_did_not_enter_the_hook_is_not_timed() -> None:
    model = MyModel()
    with TimerHook() as hook:
        in_thread(lambda: model(inputs()))

    assert hook.call_history == []


def test_a_hook_on_one_module_counts_only_its_calls() -> None:
    model, hook = MyModel(), TimerHook()
    add_hook(model.l1, hook)
    for _ in range(2):
        model(inputs())
    in_thread(lambda: model(inputs()))
    delete_hook(model.l1, "TimerHook")
    model(inputs())

    assert names(hook) == ["Linear"] * 3
    assert occurrences(hook) == {"Linear": 3}


def hooked_inside_out() -> TimerHook:
    """A hook on a model and on the two Linears inside it, after two calls."""
    model, hook = MyModel(), TimerHook()
    for module in model.modules():
        add_hook(module, hook)
    for _ in range(2):
        model(inputs())
    return hook


def test_history_is_in_order_of_end_also_on_several_modules() -> None:
    assert names(hooked_inside_out()) == ["Linear", "Linear", "MyModel"] * 2


def test_total_time_counts_nested_hooked_modules_once() -> None:
    hook = hooked_inside_out()

    assert hook.total_time() == close(hook.summary()["MyModel"]["elapsed_time"])


def test_a_timer_on_a_module_replaces_the_thread_wide_one_there() -> None:
    model, local = MyModel(), TimerHook(by="module")
    add_hook(model.l1, local)
    with TimerHook(by="module") as everywhere:
        model(inputs())

    assert names(local) == ["Linear"]
    assert names(everywhere) == ["MyModel.l2", "MyModel"]


class Interrupted(nn.Module):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.inner = nn.Identity()
        self.error: type[BaseException] | None = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inner(x)
        error, self.error = self.error, None
        if error is not None:
            raise error
        return x


def test_hooks_that_come_and_go_leave_nothing_with_a_thread_wide_one() -> None:
    """Which looks at the module anew each time, and is to hear when it is gone."""
    model = MyModel()

    def kept() -> int:
        gc.collect()
        return sum(type(each) is FunctionType for each in gc.get_objects())

    with TimerHook() as everywhere:
        for _ in range(3):  # what is kept of the first
            before = kept()
            for _ in range(20):
                add_hook(model, Second())
                model(inputs())
                delete_hook(model, "Second")
                model(inputs())
        assert kept() - before < 20
    assert occurrences(everywhere)["MyModel"] == 120


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("local", [False, True])
def test_a_call_that_raises_does_not_spoil_the_next(
    error: type[BaseException], local: bool
) -> None:
    module, hook = Interrupted(error), TimerHook()
    with hook if not local else nullcontext():
        if local:
            add_hook(module, hook)
        with pytest.raises(error):
            module(inputs())
        module(inputs())
        module(inputs())

    calls = ["Interrupted"] if local else ["Identity", "Interrupted"]
    assert names(hook) == calls * 3
    outermost = [s for name, s in hook.call_history if name == "Interrupted"]
    assert hook.total_time() == close(sum(outermost))
