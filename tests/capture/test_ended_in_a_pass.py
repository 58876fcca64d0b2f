"""Profiles that end, and processes that fork, while our code is at work in a pass."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import torch
from torch import nn

from tests.programs import python
from torchprof_hooks import profile
from torchprof_hooks.capture.record.call_tree import CallTree
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

    original = CallTree.backward_site
    calls: list[int] = []
    model = deep(9)
    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(CallTree, "backward_site", site)
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


FORKS = """
import os, signal, threading, torch, torchprof_hooks
from torchprof_hooks.capture.record.call_tree import CallTree

@torchprof_hooks.profiled
class Model(torch.nn.Sequential):
    pass

is_asked, may_go_on = threading.Event(), threading.Event()
original = CallTree.backward_site

def site(*args):
    if threading.current_thread() is thread:
        is_asked.set()
        may_go_on.wait(60)
    return original(*args)

CallTree.backward_site = site
model = Model(torch.nn.Linear(2, 2))
thread = threading.Thread(target=lambda: model(torch.ones(1, 2)).sum().backward())
thread.start()
assert is_asked.wait(60)
child = os.fork()
if not child:
    signal.alarm(20)
    rows = Model.__profiler__.profile.rows()
    os._exit(7 if "Model" in [row.name for row in rows] else 1)
may_go_on.set()
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_while_another_thread_is_in_a_pass() -> None:
    """The child can read what was measured by then."""
    assert python("-c", FORKS).stdout == "7\n"
