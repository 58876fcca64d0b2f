"""Profiles that end while our code is at work in a pass."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import torch
from torch import nn

from torchprof_hooks import profile
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.profiler import Profiler


def deep(layers: int) -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(2, 2)) for _ in range(layers)])


def train(model: nn.Module) -> None:
    model(torch.ones(1, 2)).sum().backward()


@pytest.mark.parametrize("functions", [False, True])
@pytest.mark.parametrize("at", [1, 7])
def test_a_profile_that_a_signal_stops_while_a_node_is_looked_up(
    monkeypatch: pytest.MonkeyPatch, functions: bool, at: int
) -> None:
    stopped: list[Profiler] = []

    def stop(*_: object) -> None:
        stopped.append(prof)
        prof.stop()

    def site(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == at:
            signal.raise_signal(signal.SIGUSR1)
        return original(*args)

    original = Tracker.backward_site
    calls: list[int] = []
    model = deep(9)
    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Tracker, "backward_site", site)
            prof = profile(functions=functions)
            prof.start()
            train(model)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert stopped == [prof]
    assert not [k for k, t in prof.profile.cells.items() if t.self_ns < 0]
    with profile(functions=functions) as after:
        train(model)
    (row,) = [row for row in after.profile.rows() if row.name == "Sequential"]
    assert row.phases["backward"].calls == 1
