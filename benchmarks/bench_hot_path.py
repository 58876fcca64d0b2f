"""What the parts of our own hot path cost, each by itself: where to look when a hook is
too dear."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter_ns

import results
import torch
from bench import empty_forward_hooks, rounds
from torch import nn

from torchprof_hooks.capture.overhead import COLD, costs
from torchprof_hooks.capture.tracking.make_tracker import new_tracker
from torchprof_hooks.capture.tracking.tracker import Tracker

CALLS = 1000
ROUNDS = 200


def ns_per_call(call: Callable[[], object]) -> float:
    """Median of rounds, with the loop around it (some 30 ns)."""

    def one_round() -> float:
        start_ns = perf_counter_ns()
        for _ in range(CALLS):
            call()
        return (perf_counter_ns() - start_ns) / CALLS

    return median(one_round() for _ in range(rounds(ROUNDS)))


def forward_hooks(tracker: Tracker) -> float:
    """Both hooks of a module, called without torch."""
    module = nn.Identity()
    pre, post = tracker.forward_pre, tracker.forward_post

    def both() -> None:
        pre(module, ())
        post(module, (), 1)

    return ns_per_call(both)


def empty_pair() -> float:
    """What torch adds to a call for an empty pair of global hooks."""
    module = nn.Identity()
    bare = ns_per_call(lambda: module(1))
    with empty_forward_hooks():
        return ns_per_call(lambda: module(1)) - bare


def main() -> None:
    torch.set_num_threads(1)
    tried = costs(functions=True)
    parts = {
        "reading the clock": ns_per_call(perf_counter_ns),
        "forward: torch, for an empty pair of hooks": empty_pair(),
        "forward: both hooks of a TimerHook, called by hand": forward_hooks(
            new_tracker(backward=False)
        ),
        "forward: both hooks of profile(), called by hand": forward_hooks(
            new_tracker()
        ),
        "forward: all of it, between small functions": tried.call_ns / COLD,
        "backward: to hear of a node, between small functions": tried.node_ns / COLD,
        "functions: a call, between small functions": tried.function_ns / COLD,
    }
    rows = [[name, f"{ns:.0f}"] for name, ns in parts.items()]
    note = (
        "By hand: called over and over, so that caches stay warm, without what torch "
        "takes to call a hook. Between small functions: as the trial says, on a few "
        "modules. In a program, about twice as much is counted."
    )
    table = results.Table("Parts of the hot path", ["", "ns"], rows, [note])
    results.save("hot_path", [table], parts)


if __name__ == "__main__":
    main()
