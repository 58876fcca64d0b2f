"""All numbers where several threads work at once: each has its own calls.

Only what anybody can ask of `profile()` is looked at: this holds however it measures.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Barrier, Event
from typing import Any

import pytest
import torch
from torch import nn

from tests.cores import NATIVE_CORE
from tests.doing import (
    Does,
    DoesInBackward,
    Net,
    X,
    in_backward,
    in_communication,
    in_forward,
    in_loading,
    in_optimizer,
    in_recomputation,
)
from tests.exact import (
    NET_FORWARD,
    calls,
    each_option,
    found,
    net_backward,
    outside,
    own_in,
    passes,
)
from tests.fake_clock import MS, burn
from tests.helpers import in_fork, in_thread
from tests.planted import Work
from torchprof_hooks import Profiler, profile
from torchprof_hooks.kernel.core import CORE

pytestmark = pytest.mark.usefixtures("clock")


def everything() -> None:
    """Of what would be rows here."""
    in_forward(lambda: burn(1))
    in_backward(lambda: burn(2))
    in_recomputation(lambda: burn(4))
    in_optimizer(lambda: burn(8))
    in_loading(lambda: burn(16))
    in_communication(lambda: burn(32))


@each_option
@pytest.mark.usefixtures("alone")
def test_what_another_thread_does_is_only_waited_for(options: Any) -> None:
    def elsewhere() -> None:
        in_thread(everything)

    took = 63 + (1 + 2 + 4 + 8) + (1 + 1 + 4)  # with the modules' own
    with profile(**options) as prof:
        in_forward(elsewhere)
        in_backward(elsewhere)
        in_optimizer(elsewhere)
        in_loading(elsewhere)
        elsewhere()
    assert prof.profile.wall_ns == (5 * took + 15) * MS
    assert found(prof.profile) == {
        ("Sequential", "forward"): calls(took, own=0),
        ("Sequential.0", "forward"): calls(took),
        **NET_FORWARD,
        **net_backward(own=took),
        **passes(12 + took),
        ("(optimizer) SGDThat", "optimizer"): calls(took),
        ("(data loading)", "data"): calls(took),
        **outside(took),
    }


@each_option
def test_each_thread_has_its_calls(options: Any) -> None:
    prof = profile(**options)
    model = Does(lambda: burn(1))

    def other() -> None:
        burn(2)
        with prof:
            burn(4)
            model.work = lambda: burn(8)
            model(X)
            Net(lambda: burn(16))(X).sum().backward()

    def meanwhile() -> None:
        in_thread(other)
        burn(32)

    model.work = meanwhile
    with prof:
        model(X)
    assert found(prof.profile) == {
        ("Does", "forward"): calls(2 + 4 + 8 + 3 + 28 + 32, 8),
        **NET_FORWARD,
        **net_backward(own=16),
        **passes(28),
        **outside(4),
    }


@each_option
def test_a_pass_in_another_thread_than_forward(options: Any) -> None:
    prof, net = profile(**options), Net(lambda: burn(16))
    with prof:
        burn(1024)
        out = net(X).sum()
        in_thread(out.backward)
    assert found(prof.profile) == {**NET_FORWARD, **outside(1024 + 28)}


@NATIVE_CORE
def test_what_another_thread_reads_is_of_one_moment() -> None:
    """However often it looks: all calls that have ended, each with all of its time."""
    model = nn.Sequential(Does(lambda: burn(1)), Does(lambda: burn(1)))
    shared, started, stop = list[Profiler](), Event(), Event()

    def work() -> None:
        with profile() as prof:
            shared.append(prof)
            started.set()
            while not stop.is_set():
                model(X)

    between = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # each thread as often as can be
    try:
        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(work)
            assert started.wait(60)
            seen = [found(shared[0].profile) for _ in range(300)]
            stop.set()
            working.result(60)
    finally:
        sys.setswitchinterval(between)
    assert seen[0] != seen[-1]
    for rows in seen:
        first, last, whole = (
            rows.get((name, "forward"), calls())
            for name in ("Sequential.0", "Sequential.1", "Sequential")
        )
        for part in first, last:
            assert part.total == part.squares == part.calls
            assert part.own - part.total in {0, 1}  # that of the open one
        assert (whole.own, whole.total) == (0, 2 * whole.calls)
        assert whole.calls <= last.calls <= first.calls <= whole.calls + 1


class BeganElsewhere(nn.Module):
    """What is done in its middle made its node in another thread, by which it has the
    number of a node of `first`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Work(1, 4), Work(2, 8)

    def forward(self, x: torch.Tensor) -> Any:
        between = self.first(x)
        number = between.grad_fn._sequence_nr()
        made: list[torch.Tensor] = []

        def elsewhere() -> None:
            ones = torch.ones(1, requires_grad=True)
            while (ones * 1).grad_fn._sequence_nr() < number - 1:  # type: ignore[union-attr]
                pass
            made.append(DoesInBackward.apply(between, lambda: burn(16)))

        in_thread(elsewhere)
        assert made[0].grad_fn._sequence_nr() == number  # type: ignore[union-attr]
        return self.last(made[0])


@NATIVE_CORE
def test_nodes_of_another_thread_with_the_same_number_are_its_own() -> None:
    model = BeganElsewhere()
    with profile() as prof:
        model(torch.ones(1, requires_grad=True)).sum().backward()
    assert own_in(prof.profile, "backward") == {
        "BeganElsewhere.first": 4,
        "BeganElsewhere.last": 8,
        "(backward outside modules)": 16,
    }


def test_a_pass_of_another_thread_over_our_graph_is_not_ours() -> None:
    """It runs its nodes when a pass of ours has begun, and before the first of that."""
    of_others, of_ours = Work(0, 4), Work(0, 8)
    x = torch.ones(1, requires_grad=True)

    def come_between(grad: torch.Tensor) -> None:
        in_thread(lambda: torch.autograd.grad(theirs, x))

    with profile() as prof:
        theirs, ours = of_others(x), of_ours(x)
        ours.register_hook(come_between)
        ours.backward()
    own = own_in(prof.profile, "backward")
    assert {name: ms for name, ms in own.items() if name.startswith("Work")} == {
        "Work#2": 8
    }


def test_of_more_threads_than_a_hand_has_fingers() -> None:
    """Each in a profile of its own, and all in their passes at once."""
    count = 12
    all_are_in = Barrier(count)

    class Last(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = DoesInBackward.apply(x, lambda: all_are_in.wait(60))
            return result

    def work(number: int) -> list[int]:
        model = nn.Sequential(Last(), nn.Linear(3, 3), Last())
        with profile() as prof:
            model(torch.ones(3, requires_grad=True)).sum().backward()
        cells = prof.profile.cells
        names = [f"Sequential.{part}" for part in range(3)]
        return [cells[("Sequential", name), "backward"].calls for name in names]

    with ThreadPoolExecutor(count) as pool:
        assert list(pool.map(work, range(count))) == [[1, 1, 1]] * count


@NATIVE_CORE
def test_a_fork_while_another_thread_is_in_a_pass() -> None:
    """What that has locked is not locked in the child."""
    in_pass, is_over = Event(), Event()
    readings, clock = count(), time.perf_counter_ns

    def train() -> None:
        with profile():
            loss = torch.ones(1, requires_grad=True) * 2
            core.set_clock(wait)
            loss.backward()

    def wait() -> int:
        if next(readings) == 1:  # the first while the pass is locked
            in_pass.set()
            is_over.wait(60)
        return clock()

    core: Any = CORE.module
    backward = torch.ones(1, requires_grad=True).mul(2).backward
    with ThreadPoolExecutor(1) as pool:
        try:
            training = pool.submit(train)
            assert in_pass.wait(60)
            assert in_fork(lambda: backward() is None)
            is_over.set()
            training.result()
        finally:
            core.set_clock(clock)
