"""Finding whose the nodes of a backward pass are takes no longer for what else lives,
or was called before: by counts of what is gone through."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import torchprof_hooks
from tests.cores import NATIVE_CORE
from torchprof_hooks.profiler import Profiler


def tracker_of(prof: Profiler) -> Any:
    steps: Any = prof._rounds[0]._steps
    return steps.tracker


def unrolled(calls: int) -> torch.Tensor:
    """A loop over modules that no module is around."""
    cell, act = nn.Linear(2, 2), nn.Tanh()
    h = torch.ones(1, 2)
    for _ in range(calls):
        h = act(cell(h))
    return h.sum()


@NATIVE_CORE
def test_calls_whose_graphs_live_do_not_make_the_search_longer() -> None:
    calls = 1_000
    with torchprof_hooks.profile() as prof:
        loss = unrolled(calls)
        before = tracker_of(prof).owner_steps
        loss.backward()
        steps = tracker_of(prof).owner_steps - before
    assert prof.profile.cells[("Linear",), "backward"].calls == calls
    assert 0 < steps < 20 * (2 * calls)  # of all that live, it were 1 000 for each


def test_graphs_that_are_gone_hide_none_that_live() -> None:
    cell = nn.Linear(2, 2)
    x = torch.ones(1, 2)
    with torchprof_hooks.profile() as prof:
        graphs = [cell(x).sum() for _ in range(400)]
        del graphs[50:150], graphs[100:250:2]
        for loss in graphs[::3]:
            loss.backward(retain_graph=True)
        for loss in reversed(graphs):
            loss.backward()
        backward = prof.profile.cells[("Linear",), "backward"].calls
    assert backward == len(graphs[::3]) + len(graphs)
