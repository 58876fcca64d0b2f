"""Where a timer for functions is registered, and what it survives."""

from __future__ import annotations

import pytest
import torch.nn.functional as F

from tests.function_hooks.test_timer import INPUT, STEP, names, occurrences, step
from tests.functions import ONE, Cube, Runs, raises, x
from tests.helpers import close, in_thread
from torchprof_hooks import add_hook, delete_hook
from torchprof_hooks.function_hooks import TimerHook

pytestmark = pytest.mark.usefixtures("ticking")


def test_a_hook_entered_again_goes_on_counting() -> None:
    hook = TimerHook()
    for _ in range(2):
        with hook:
            step()
        step()  # not seen

    assert names(hook) == STEP * 2


def test_a_hook_on_one_class_counts_only_its_calls() -> None:
    hook = TimerHook()
    add_hook(Cube, hook)
    step()
    in_thread(step)
    delete_hook(Cube, "TimerHook")
    step()

    assert names(hook) == ["Cube"] * 4
    assert hook.total_time() == close(hook.summary()["Cube"]["elapsed_time"])


def test_a_hook_on_one_torch_function_counts_only_its_calls() -> None:
    hook = TimerHook(phases=True)
    add_hook(F.linear, hook)
    step()
    delete_hook(F.linear, "TimerHook")
    step()

    assert names(hook) == ["linear", "linear"]
    assert hook.summary()["linear"]["backward_time"] == hook.call_history[1][1]


def test_a_hook_on_a_node_counts_its_runs() -> None:
    hook, hidden = TimerHook(), INPUT.exp()
    add_hook(hidden.grad_fn, hook)
    hidden.sum().backward(ONE)

    assert names(hook) == ["ExpBackward0"]


def test_threads_that_use_one_hook_are_added_up() -> None:
    hook, value = TimerHook(), x()

    def work() -> None:
        with hook:
            (value * 2).sum().backward(ONE)

    for _ in range(3):
        in_thread(work)

    assert occurrences(hook) == {"mul": 6, "sum": 6}
    assert hook.total_time() == close(sum(seconds for _, seconds in hook.call_history))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_call_that_raises_does_not_spoil_the_next(
    error: type[BaseException],
) -> None:
    with TimerHook() as hook:
        with pytest.raises(error):
            Runs.apply(INPUT, raises(error))
        with pytest.raises(error):
            Runs.apply(INPUT, int, raises(error)).sum().backward(ONE)
        before = len(hook.call_history)
        step()

    assert names(hook)[:4] == ["Runs", "clone", "Runs", "sum"]
    assert names(hook)[before:] == STEP
    outermost = [s for n, s in hook.call_history if n not in ("mul", "clone")]
    assert hook.total_time() == close(sum(outermost))


class Second(TimerHook):
    name = "Second"


def test_two_timers_at_once_both_count() -> None:
    with TimerHook() as outer:
        step()
        with Second(by="call") as inner:
            step()

    assert names(outer) == STEP * 2
    assert occurrences(inner)["linear(2x3, 5x3)"] == 2
    assert sum(occurrences(inner).values()) == len(STEP)


def test_a_timer_on_a_function_replaces_the_thread_wide_one_there() -> None:
    local = TimerHook()
    add_hook(F.linear, local)
    with TimerHook() as everywhere:
        step()
    delete_hook(F.linear, "TimerHook")

    assert names(local) == ["linear", "linear"]
    assert names(everywhere) == [name for name in STEP if name != "linear"]
    everywhere_s = sum(s for n, s in everywhere.call_history if n != "mul")
    assert everywhere.total_time() == close(everywhere_s)


class Announcing(TimerHook):
    """A timer with callbacks as well."""

    def forward_preprocess(self, *args: object) -> None:
        self.announced = getattr(self, "announced", 0) + 1


def test_a_subclass_gets_callbacks_and_times() -> None:
    with Announcing() as hook:
        step()

    assert hook.announced == 5  # linear, Cube, mul, mul, sum
    assert names(hook) == STEP
