"""What the parts of our own hot path cost, each by itself: where to look when a hook is
too dear."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from statistics import median
from time import perf_counter_ns
from typing import Any

import results
import torch
from bench import empty_forward_hooks, rounds
from torch import nn
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.backward.plan import reachable_nodes
from torchprof_hooks.capture.core import hooks_of
from torchprof_hooks.capture.core.span_log import SpanLog
from torchprof_hooks.capture.overhead.calibration import calibration_of
from torchprof_hooks.capture.torch_names.autograd import (
    NodeHookCarrier,
    next_sequence_number,
)
from torchprof_hooks.capture.tracking.make_tracker import new_tracker
from torchprof_hooks.capture.tracking.tracker import Tracker

CALLS = 1000
ROUNDS = 200
NODES = 1000


def ns_per_call(call: Callable[[], object], calls: int = CALLS) -> float:
    """Median of rounds, with the loop around it (some 30 ns)."""

    def one_round() -> float:
        start_ns = perf_counter_ns()
        for _ in range(calls):
            call()
        return (perf_counter_ns() - start_ns) / calls

    return median(one_round() for _ in range(rounds(ROUNDS)))


def forward_hooks(tracker: Tracker) -> float:
    """Both hooks of a module, called without torch."""
    module = nn.Identity()
    pre, post = hooks_of(tracker)

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


def fold() -> float:
    """Of one span in the log, to the totals."""
    log, spans = SpanLog(), 4096
    entries = [number for n in range(spans) for number in (n % 100, n, n + 1000)]
    times = []
    for _ in range(rounds(ROUNDS)):
        log.entries.extend(entries)
        start_ns = perf_counter_ns()
        log.fold()
        times.append((perf_counter_ns() - start_ns) / spans)
    return median(times)


def chain() -> torch.Tensor:
    """The last of many tensors, each made of the one before."""
    value = torch.zeros(1, requires_grad=True)
    for _ in range(NODES):
        value = -value
    return value


def empty_node_hook() -> float:
    """The engine calls an empty Python hook in front of a node."""
    times: dict[bool, list[float]] = {False: [], True: []}
    carrier = NodeHookCarrier()
    carrier.callbacks[0] = _nothing
    for turn in range(2 * rounds(ROUNDS // 4)):
        is_hooked, value = bool(turn % 2), chain()
        if is_hooked:
            nodes = reachable_nodes([value.grad_fn]) or {}
            carrier.put_in_front_of(list(nodes.values()))
        start_ns = perf_counter_ns()
        torch.autograd.backward(value)
        times[is_hooked].append((perf_counter_ns() - start_ns) / NODES)
    return median(times[True]) - median(times[False])


def _nothing(gradient: Any) -> None:
    return None


def walk() -> float:
    """Of one node of a graph, when a backward pass is planned."""
    value = chain()
    return ns_per_call(lambda: reachable_nodes([value.grad_fn]), 1) / NODES


def hook_a_node() -> float:
    """Putting our hook in front of a node."""
    nodes = list((reachable_nodes([chain().grad_fn]) or {}).values())
    carrier = NodeHookCarrier()
    return ns_per_call(lambda: carrier.put_in_front_of(nodes), 1) / NODES


def main() -> None:
    torch.set_num_threads(1)
    costs = calibration_of(new_tracker())
    parts = {
        "reading the clock": ns_per_call(perf_counter_ns),
        "... the counter of nodes": ns_per_call(next_sequence_number),
        "asking for the thread": ns_per_call(get_ident),
        "... whether torch.compile traces": ns_per_call(is_dynamo_compiling),
        "forward: torch, for an empty pair of hooks": empty_pair(),
        "forward: both hooks of a TimerHook, called by hand": forward_hooks(
            new_tracker(backward=False)
        ),
        "forward: both hooks of profile(), called by hand": forward_hooks(
            new_tracker()
        ),
        "forward: all of it, between small functions": sum(costs.warm.call),
        "forward: ... and swept caches": sum(costs.cold.call),
        "folding a span into the totals": fold(),
        "backward: the engine, for an empty hook of a node": empty_node_hook(),
        "backward: to hear of a node, between small functions": costs.warm.node_ns,
        "backward: ... and swept caches": costs.cold.node_ns,
        "backward: going over to another owner, between these": costs.warm.boundary_ns,
        "backward: ... and swept caches, too": costs.cold.boundary_ns,
        "planning: walking over a node": walk(),
        "planning: hooking a node": hook_a_node(),
    }
    rows = [[name, f"{ns:.0f}"] for name, ns in parts.items()]
    note = (
        "By hand: called over and over, so that caches stay warm, without what torch "
        "takes to call a hook. All of it: as calibrated, on many modules, with small "
        "functions of torch between them, or with 1 MiB of memory swept."
    )
    table = results.Table("Parts of the hot path", ["", "ns"], rows, [note])
    results.save("hot_path", [table], parts)


if __name__ == "__main__":
    main()
