"""What timers and memory hooks have in common, those of modules and those of functions:
a history of calls, and sums by name."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Barrier
from typing import Any

import pytest

from tests.cores import NATIVE_CORE
from tests.fake_clock import burn
from tests.functions import ONE, Runs, raises, x
from tests.helpers import in_thread, names, occurrences
from tests.seeds.link_hooks.fake_memory import (
    MEMORY_HOOKS,
    FakeMemory,
    Taken,
    fake_memory,
)
from tests.seeds.link_hooks.planted import TIMERS, Timed
from torchprof_hooks import LinkHook, add_hook, delete_hook

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def memory() -> Iterator[FakeMemory]:
    with fake_memory() as memory:
        yield memory


@pytest.fixture(
    params=[
        *(f"times of {kind}" for kind in TIMERS),
        *(
            pytest.param(f"memory of {kind}", marks=NATIVE_CORE)
            for kind in MEMORY_HOOKS
        ),
    ]
)
def planted(request: pytest.FixtureRequest, memory: FakeMemory) -> Timed | Taken:
    what, _, kind = request.param.split()
    return TIMERS[kind]() if what == "times" else MEMORY_HOOKS[kind](memory)


def test_planted_work_is_found(planted: Timed | Taken, memory: FakeMemory) -> None:
    hook = planted.hook()
    for _ in range(2):
        with hook:
            planted.step()
            burn(1)  # nobody's, as these
            memory.take(7)
        planted.step()  # not seen

    assert hook.call_history == planted.history * 2
    planted.check_sums(hook, 2)
    assert list(hook.summary()) == list(dict.fromkeys(planted.names))
    for sums in hook.summary().values():
        assert {field: type(number) for field, number in sums.items()} == planted.fields
    numbers = [number for call in hook.call_history for number in call[1:]]
    assert {type(number) for number in numbers} <= {int, float}


def test_a_hook_that_saw_nothing(planted: Timed | Taken) -> None:
    hook, report = planted.hook(), io.StringIO()
    with hook:
        pass
    hook.print_report(file=report)

    assert (hook.call_history, hook.summary()) == ([], {})
    totals = ["total_time"]
    if isinstance(planted, Taken):
        totals = ["total_used_bytes", "total_acquired_bytes"]
    assert [getattr(hook, name)() for name in totals] == [0] * len(totals)
    called = "module" if isinstance(hook, LinkHook) else "function"
    expected = f"{hook.name}: no {called} was called, there is nothing to report.\n"
    assert report.getvalue() == expected


def test_numbers_can_be_read_while_the_hook_is_active(planted: Timed | Taken) -> None:
    seen: list[Any] = []
    with planted.hook() as hook:
        planted.step(lambda: seen.append((names(hook), occurrences(hook))))

    ended = planted.names[: planted.ended]  # the outer call has not
    assert seen == [(ended, Counter(ended))]


@pytest.mark.parametrize("history_size", [0, 4])
def test_sums_are_exact_whatever_the_history_keeps(
    planted: Timed | Taken, history_size: int
) -> None:
    # More calls than are kept between two times that the sums are made.
    steps = 4096 // len(planted.names) + 100 if history_size else 2
    with planted.hook(history_size=history_size) as hook:
        for _ in range(steps):
            planted.step()

    newest = (planted.history * 2)[-history_size:] if history_size else []
    assert hook.call_history == newest
    planted.check_sums(hook, steps)


def test_threads_that_use_one_hook_are_added_up(planted: Timed | Taken) -> None:
    hook, together, steps = planted.hook(), Barrier(3, timeout=60), 20

    def work() -> None:
        with hook:
            together.wait()
            for _ in range(steps):
                planted.step()
            together.wait()

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(work) for _ in range(3)]:
            done.result()

    expected = Counter(planted.names * 3 * steps)
    assert occurrences(hook) == Counter(names(hook)) == expected


def test_a_hook_on_one_target_counts_only_its_calls(planted: Timed | Taken) -> None:
    hook = planted.hook()
    add_hook(planted.target, hook)
    planted.step()
    in_thread(planted.step)
    delete_hook(planted.target, hook.name)
    planted.step()

    assert hook.call_history == planted.local * 2
    whole = hook.total_time if isinstance(planted, Timed) else hook.total_used_bytes
    assert whole() == pytest.approx(2 * sum(call[1] for call in planted.local))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("local", [False, True])
def test_calls_and_backwards_that_raise_do_not_spoil_the_next_step(
    planted: Timed | Taken, error: type[BaseException], local: bool
) -> None:
    hook = planted.hook()
    if local:
        add_hook(planted.target, hook)
    with nullcontext() if local else hook:
        with pytest.raises(error):
            planted.step(raises(error))
        with pytest.raises(error):
            Runs.apply(x(), int, raises(error)).sum().backward(ONE)
        before = len(hook.call_history)
        planted.step()
    if local:
        delete_hook(planted.target, hook.name)

    expected = planted.local if local else planted.history
    assert hook.call_history[-len(expected) :] == expected
    if error is RuntimeError:  # of the interrupt, the next call may tell
        assert hook.call_history[before:] == expected
