"""What measuring costs, at least: how often we do something, times how long the core
takes for a call; and the row "profiler overhead". Rows are as measured."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

import torch

from torchprof_hooks.kernel.make_tracker import new_tracker

if TYPE_CHECKING:
    from torchprof_hooks.kernel.tree import Site

#: So many calls are opened and closed to see how long one takes, so many times.
_CALLS: Final = 100
_ROUNDS: Final = 10


@cache
def call_ns() -> float:
    """What the core takes to open and close a call, in nanoseconds: the fastest of some
    rounds, as other processes may be busy. In a program, whose own work has pushed our
    code out of the processor's caches, it takes longer."""
    tracker, module = new_tracker(), torch.nn.Identity()
    open_call, close_call = tracker.forward_pre, tracker.forward_post
    open_call(module, ())  # it is new there
    close_call(module, (), None)
    rounds = []
    for _ in range(_ROUNDS):
        began_ns = perf_counter_ns()
        for _ in range(_CALLS):
            open_call(module, ())
            close_call(module, (), ())
        rounds.append(perf_counter_ns() - began_ns)
    return min(rounds) / _CALLS


def counted_ns(
    sites: Sequence[Site],
    calls: Sequence[int],
    own_ns: Sequence[int],
) -> int:
    """What measuring has cost at least, in nanoseconds, by what it has counted.

    calls, own_ns: how many calls of each site have ended, and their own time.
    """
    if not any(calls):
        return 0
    each_ns, found = call_ns(), 0.0
    for site, count, ns in zip(sites, calls, own_ns, strict=True):
        found += site.nodes_run * each_ns  # each node is a move as well
        if site.phase == "profiler":
            found += ns
        elif site.phase != "backward":
            found += count * each_ns * (site.is_function or site.is_called)
    return round(found)
