"""Which call made which node: the native core's tape against the reference, where it
has no room for more, and how much it goes through to find a call."""

from __future__ import annotations

import random
from itertools import groupby
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.cores import NATIVE_CORE
from tests.helpers import in_thread
from torchprof_hooks import profile
from torchprof_hooks.kernel.core import Node
from torchprof_hooks.kernel.graph import reachable_nodes
from torchprof_hooks.kernel.reference import cursor as reference
from torchprof_hooks.kernel.reference import node as reference_nodes
from torchprof_hooks.kernel.torch_names.autograd import next_sequence_number
from torchprof_hooks.kernel.tracker import Tracker
from torchprof_hooks.profiler import Profiler

#: So many calls a tape has room for.
ROOM = 1 << 18


class Calls:
    """Calls that are shown to a cursor, with numbers of nodes that are made up."""

    def __init__(self, cursor: Any, kind: Any) -> None:
        self.cursor, self.kind = cursor, kind
        self.open: list[Any] = []
        self.made = 0

    def begin(self, number: int, is_backward: bool = False) -> None:
        node = self.kind()
        node.code, self.made = self.made, self.made + 1
        self.cursor.own_from(node, number, is_backward)
        self.open.append(node)

    def end(self, number: int, calls: int = 1) -> None:
        """Of so many calls, of which only the outermost is told."""
        outermost = self.open[-calls]
        del self.open[-calls:]
        self.cursor.own_until(outermost, number)

    def owners(self, number: int) -> list[int]:
        return [code for _, code in self.cursor.owners_of(number)]


# The examples of native/attribution.h and reference/attribution.py


def three_nodes() -> torch.Tensor:
    x = torch.ones(1, 2, requires_grad=True)
    for _ in range(3):
        x = x * 1
    return x


def net_of_the_examples() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))


def intervals(prof: Profiler, first: int) -> list[tuple[int, int, str, str]]:
    """Of the calls that own nodes, from the first number on: (low, high, name of the
    innermost one, phase)."""
    steps: Any = prof._threads.rounds[0]._steps

    def owner(number: int) -> tuple[str, str]:
        chain = steps.tracker.owners_of(number)
        if not chain:
            return "", ""
        site = steps.tracker.sites[chain[-1][1]]
        return site.path[-1].rpartition(".")[2], site.phase

    numbers = range(first, next_sequence_number())
    runs = [(key, [*run]) for key, run in groupby(numbers, owner)]
    return [(run[0], run[-1] + 1, *key) for key, run in runs]


def test_example_each_call_owns_the_interval_of_its_nodes() -> None:
    def run() -> list[Any]:
        three_nodes()
        with profile() as prof:
            loss = net_of_the_examples()(torch.ones(1, 2)).sum()
            assert set(reachable_nodes([loss.grad_fn]) or ()) == set(range(3, 9))
            return intervals(prof, 0)

    assert in_thread(run) == [
        (0, 3, "", ""),
        (3, 5, "0", "forward"),
        (5, 6, "1", "forward"),
        (6, 8, "2", "forward"),
        (8, 9, "", ""),
    ]


def test_example_a_checkpoint_calls_again_in_intervals_of_its_own() -> None:
    def run() -> list[Any]:
        x, net, found = three_nodes(), net_of_the_examples(), list[Any]()
        with profile() as prof:
            net.register_forward_hook(lambda *_: found.append(intervals(prof, 3)))
            checkpoint(net, x, use_reentrant=True).sum().backward()
        return [*found[-1]]  # when it was called again, before the nested pass

    assert in_thread(run) == [
        (3, 5, "", ""),
        (5, 7, "0", "recompute"),
        (7, 8, "1", "recompute"),
        (8, 10, "2", "recompute"),
    ]


def test_example_what_a_pass_makes_belongs_to_the_backward_that_makes_it() -> None:
    def run() -> list[Any]:
        three_nodes()
        with profile() as prof:
            net = net_of_the_examples()
            loss = net(torch.ones(1, 2)).sum()
            torch.autograd.grad(loss, [*net.parameters()], create_graph=True)
            return intervals(prof, 9)

    found = in_thread(run)
    assert [(name, phase) for _, _, name, phase in found] == [
        ("2", "backward"),
        ("1", "backward"),
        ("0", "backward"),
    ]
    if torch.__version__.startswith("2.13."):  # others may make more, or fewer
        assert [found[:2] for found in found] == [(9, 14), (14, 15), (15, 21)]


@NATIVE_CORE
def test_example_each_thread_has_its_own_numbers() -> None:
    calls = Calls(Tracker(), Node)

    def elsewhere() -> None:
        calls.begin(0)
        calls.begin(0)
        calls.end(2)
        calls.end(5)

    calls.begin(4)
    in_thread(elsewhere)
    assert calls.cursor.owners_of(4) is None  # both threads have made one
    assert calls.owners(1) == [0, 1, 2]


@NATIVE_CORE
@pytest.mark.parametrize("seed", range(20))
def test_random_calls_own_what_the_reference_says(seed: int) -> None:
    generator, number = random.Random(seed), 0
    both = [Calls(Tracker(), Node), Calls(reference.Cursor(), reference_nodes.Node)]
    for _ in range(2_000):
        number += generator.choice((0, 0, 1, 1, 5))
        depth = len(both[0].open)
        if depth < 2 or generator.random() < 0.5 - depth / 40:
            is_backward = generator.random() < 0.1
            for each in both:
                each.begin(number, is_backward)
        else:
            calls = generator.choice((1, 1, 1, min(2, depth)))
            for each in both:
                each.end(number, calls)
        for _ in range(3):
            asked = max(number - generator.choice((0, 1, 3, 30, 3_000)), 0)
            native, wanted = (each.owners(asked) for each in both)
            assert native == wanted


def test_calls_in_another_thread_are_inside_of_those_in_the_followed_one() -> None:
    """The engine may run a part of a pass in a thread of its own, where a checkpoint
    calls modules again. Each thread numbers its own nodes."""
    calls = Calls(Tracker(), Node)
    calls.begin(100)

    def elsewhere() -> None:
        for number in (5, 6):
            calls.begin(number)
            calls.begin(number)
            calls.end(number + 1)
            calls.end(number + 1)

    in_thread(elsewhere)
    assert [calls.owners(number) for number in (5, 6)] == [[0, 1, 2], [0, 3, 4]]
    calls.begin(110)
    calls.end(112)
    assert calls.owners(111) == [0, 5]


@NATIVE_CORE
def test_calls_that_are_open_for_long_keep_what_happens_in_them() -> None:
    calls, count = Calls(Tracker(), Node), ROOM + 5_000
    calls.begin(0)  # around all
    calls.begin(10)
    calls.end(20)
    calls.begin(20)
    for number in range(30, 30 + count):
        calls.begin(number)
        calls.end(number + 1)
    newest = 29 + count
    assert calls.owners(newest) == [0, 2, calls.made - 1]
    assert calls.owners(newest - 1_000) == [0, 2, calls.made - 1_001]
    assert calls.owners(25) == [0, 2]
    # Too long ago: the calls around have them.
    assert calls.owners(40) == [0, 2]
    assert calls.owners(15) == [0]
    calls.end(newest + 1)
    assert calls.owners(newest + 5) == [0]
    assert calls.cursor.tape_sizes[0] == ROOM


@NATIVE_CORE
def test_calls_without_nodes_leave_nothing() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with profile() as prof:
        steps: Any = prof._threads.rounds[0]._steps
        with torch.no_grad():
            for _ in range(1_000):
                model(torch.ones(2))
        assert steps.tracker.tape_sizes == (0, 0)


@pytest.mark.parametrize("functions", [False, True])
def test_nothing_is_written_into_nodes(functions: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with profile(functions=functions):
        loss = model(torch.ones(2)).sum()
        nodes = reachable_nodes([loss.grad_fn])
        assert nodes
        assert not any(node.metadata for node in nodes.values())
        loss.backward()


# How long it takes to find whose a node is


def steps_of(prof: Profiler) -> int:
    """Of the search, so far: the native core counts them."""
    steps: Any = prof._threads.rounds[0]._steps
    _, searched = getattr(steps.tracker, "tape_sizes", (0, 0))
    return int(searched)


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
    with profile() as prof:
        loss = unrolled(calls)
        before = steps_of(prof)
        loss.backward()
        steps = steps_of(prof) - before
    assert prof.profile.cells[("Linear",), "backward"].calls == calls
    assert 0 < steps < 20 * (2 * calls)  # of all that live, it were 1 000 for each


def test_graphs_that_are_gone_hide_none_that_live() -> None:
    cell = nn.Linear(2, 2)
    x = torch.ones(1, 2)
    with profile() as prof:
        graphs = [cell(x).sum() for _ in range(400)]
        del graphs[50:150], graphs[100:250:2]
        for loss in graphs[::3]:
            loss.backward(retain_graph=True)
        for loss in reversed(graphs):
            loss.backward()
        backward = prof.profile.cells[("Linear",), "backward"].calls
    assert backward == len(graphs[::3]) + len(graphs)


class Trainer(nn.Module):
    """Trains inside of its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        self.steps: list[int] = []  # of the search, in each pass

    def forward(self, x: torch.Tensor, prof: Profiler, passes: int) -> None:
        for _ in range(passes):
            before = steps_of(prof)
            self.net(x).sum().backward()
            self.steps.append(steps_of(prof) - before)


@NATIVE_CORE
def test_what_ended_in_an_open_call_makes_the_search_no_longer() -> None:
    trainer = Trainer()
    with profile() as prof:
        trainer(torch.ones(1, 2), prof, 400)
    # So many are looked at in any case.
    assert 0 < max(trainer.steps) <= 2 * 64
