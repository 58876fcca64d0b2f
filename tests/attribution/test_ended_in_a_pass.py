"""Profiles that end, and processes that fork, while our code is at work in a pass."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torchprof_hooks import profile
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
