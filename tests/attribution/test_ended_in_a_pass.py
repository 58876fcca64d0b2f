"""Profiles that end, and processes that fork, while our code is at work in a pass."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers import in_fork
from torchprof_hooks import profile
from torchprof_hooks.capture.record.call_tree import CallTree
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


def test_a_fork_while_another_thread_is_in_a_pass(
    when_a_node_is_looked_up: Any,
) -> None:
    """The child can read what was measured by then."""
    is_asked, may_go_on = Event(), Event()

    def wait() -> None:
        is_asked.set()
        may_go_on.wait(60)

    when_a_node_is_looked_up(1, wait)
    prof, model = profile(), nn.Sequential(nn.Linear(2, 2))

    def train() -> None:
        with prof:
            model(X).sum().backward()

    def was_called_once() -> bool:
        rows = prof.profile.rows()
        return [row.calls for row in rows if row.name == "Sequential"] == [1]

    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(train)
        assert is_asked.wait(60)
        try:
            assert in_fork(was_called_once)
        finally:
            may_go_on.set()
        training.result()
