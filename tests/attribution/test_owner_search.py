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


def steps_of(prof: Profiler) -> int:
    """Of the search, so far: the native core counts them."""
    _, steps = getattr(tracker_of(prof), "tape_sizes", (0, 0))
    return int(steps)


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
        before = steps_of(prof)
        loss.backward()
        steps = steps_of(prof) - before
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


class Trainer(nn.Module):
    """Trains inside of its forward. The first of its graphs wait until the end."""

    def __init__(self, waiting: int = 0) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        self.waiting = waiting
        self.steps: list[int] = []  # of the search, in each pass

    def forward(self, x: torch.Tensor, prof: Profiler, passes: int) -> None:
        losses = [self.net(x).sum() for _ in range(self.waiting)]
        for _ in range(passes):
            before = steps_of(prof)
            self.net(x).sum().backward()
            self.steps.append(steps_of(prof) - before)
        if losses:
            torch.stack(losses).sum().backward()


@NATIVE_CORE
def test_what_ended_in_an_open_call_makes_the_search_no_longer() -> None:
    trainer = Trainer()
    with torchprof_hooks.profile() as prof:
        trainer(torch.ones(1, 2), prof, 400)
    # So many are looked at in any case.
    assert 0 < max(trainer.steps) <= 2 * 64


def test_older_calls_inside_of_an_open_one_are_found() -> None:
    trainer = Trainer(waiting=150)
    with torchprof_hooks.profile() as prof:
        for _ in range(2):
            trainer(torch.ones(1, 2), prof, 60)
    calls = {key: each.calls for key, each in prof.profile.cells.items()}
    # Each pass is one call of those that are around it, however far it goes back.
    assert calls[("Trainer",), "backward"] == 2 * 61
    for inner in ("Trainer.net", "Trainer.net.0", "Trainer.net.1"):
        [found] = [key for key in calls if key[0][-1] == inner and key[1] == "backward"]
        assert calls[found] == 2 * (60 + 150)
