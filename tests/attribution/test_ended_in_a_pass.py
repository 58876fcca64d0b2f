"""Profiles that end, and threads that run passes, while our code is at work."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
import torch
from torch import nn

from tests.cores import NATIVE_CORE
from torchprof_hooks import profile
from torchprof_hooks.instruments.functions.operators import OperatorCalls
from torchprof_hooks.kernel.core import Cursor
from torchprof_hooks.kernel.tree import CallTree
from torchprof_hooks.profiler import Profiler

X = torch.ones(1, 2)


@pytest.fixture
def when_a_node_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[int, Callable[[], object]], None]:
    """Has something done when the call of so many nodes is not known yet."""

    def do(at: int, work: Callable[[], object]) -> None:
        original, calls = CallTree.backward_site, list[int]()

        def site(*args: Any) -> Any:
            calls.append(1)
            if len(calls) == at:
                work()
            return original(*args)

        monkeypatch.setattr(CallTree, "backward_site", site)

    return do


@pytest.mark.parametrize("functions", [False, True])
@pytest.mark.parametrize("at", [1, 7])
def test_a_profile_that_a_signal_stops(
    when_a_node_is_looked_up: Any, functions: bool, at: int
) -> None:
    stopped: list[Profiler] = []

    def stop(*_: object) -> None:
        stopped.append(prof)
        prof.stop()

    model = nn.Sequential(*[nn.Sequential(nn.Linear(2, 2)) for _ in range(9)])
    prof = profile(functions=functions)
    before = signal.signal(signal.SIGUSR1, stop)
    try:
        when_a_node_is_looked_up(at, lambda: signal.raise_signal(signal.SIGUSR1))
        prof.start()
        model(X).sum().backward()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert stopped == [prof]
    assert not [k for k, t in prof.profile.cells.items() if t.self_ns < 0]
    with profile(functions=functions) as after:
        model(X).sum().backward()
    (row,) = [row for row in after.profile.rows() if row.name == "Sequential"]
    assert row.phases["backward"].calls == 1


@NATIVE_CORE
def test_passes_that_nobody_follows_wait_for_none_that_is(
    when_a_node_is_looked_up: Any,
) -> None:
    """Those of another thread end while the followed one is held up at a node."""
    ended: list[bool] = []

    def elsewhere() -> None:
        nn.Linear(2, 2)(X).sum().backward()

    def wait() -> None:
        other = Thread(target=elsewhere, daemon=True)
        other.start()
        other.join(20)
        ended.append(not other.is_alive())

    when_a_node_is_looked_up(1, wait)
    with profile():
        nn.Linear(2, 2)(X).sum().backward()
    assert ended == [True]


def cursors() -> int:
    gc.collect()
    return sum(isinstance(each, Cursor) for each in gc.get_objects())


@NATIVE_CORE
def test_one_of_two_profiles_ends_while_an_operator_is_placed_for_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it follows the thread with stays until the operator ends."""
    place, held = OperatorCalls.place, [profile(functions=True)]
    placed: list[str] = []
    found: list[int] = []

    def drop_first(*args: Any) -> Any:
        placed.append("mul")
        if len(placed) == 2:
            held.pop().stop()
            found.append(cursors())
        return place(*args)

    monkeypatch.setattr(OperatorCalls, "place", drop_first)
    before = cursors()
    held[0].start()
    with profile(functions=True) as prof:
        torch.mul(X, X)
        torch.mul(X, X)
    rows = {row.name: row.calls for row in prof.profile.rows("function")}
    assert rows["mul"] == 2
    del prof
    found.append(cursors())
    assert found == [before + 2, before]
