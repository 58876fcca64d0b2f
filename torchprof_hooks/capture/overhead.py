"""What measuring costs: how often we do something, times how long that takes in a short
trial on this machine; and how much of the cost is subtracted from rows.

Rows are as measured, but for a part of the profiler overhead that is subtracted from
them: time that we have measured ourselves (finding the row of a new call, reading
meters, work at the end of a step). It goes to the row "profiler overhead".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from time import perf_counter_ns
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F

from torchprof_hooks.capture.attach.attachments import attachments
from torchprof_hooks.capture.attach.interception import interception
from torchprof_hooks.capture.backward.backward_pass import PassRequest
from torchprof_hooks.capture.core import (
    Interceptor,
    python_pass_begins,
    python_pass_ends,
)
from torchprof_hooks.capture.duty import Block, Kind
from torchprof_hooks.capture.functions.aside import do_aside
from torchprof_hooks.capture.record.memory_log import MemorySums
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.torch_names.autograd import run_engine
from torchprof_hooks.capture.torch_names.module_calls import (
    QuietModule,
    no_implementation,
    with_implementation,
)
from torchprof_hooks.capture.tracking.make_tracker import new_tracker
from torchprof_hooks.capture.tracking.meters.memory import MemoryMeter
from torchprof_hooks.capture.tracking.meters.meters import meters_of
from torchprof_hooks.capture.tracking.tracker import Tracker

#: In a program, our code has been pushed out of the processor's caches by the program's
#: own work, and takes about so many times as long as in the trial.
COLD: Final = 2.0
#: What off blocks cost, in units of a module's call: for each outermost call, which is
#: short where there are many; for each node, which stands for the inner calls that we
#: look at and do not measure; and for each training step, as code that runs once in a
#: step is in no cache.
OFF_CALL: Final = 0.4
OFF_NODE: Final = 0.1
OFF_STEP: Final = 25.0
#: The trial has so many layers, and so many rounds, of which the fastest counts.
_LAYERS: Final = 16
_FUNCTIONS: Final = 3  # that each layer calls
_ROUNDS: Final = 6
#: The least that measuring a module's call, and a node, takes on any machine, in
#: nanoseconds: a trial that finds less was disturbed. For functions, there is no such
#: minimum, as their cost is subtracted from rows, which must not be by a guess.
_LEAST: Final = (100.0, 50.0, 0.0)


class Costs(NamedTuple):
    """Nanoseconds that measuring adds to a program: for a call of a module, for a node
    of a backward pass, and for a call of a function."""

    call_ns: float = 0.0
    node_ns: float = 0.0
    function_ns: float = 0.0


def costs(functions: bool) -> Costs:
    """What measuring costs on this machine; zeros if that cannot be tried. The first
    call takes some milliseconds, in a thread of its own, which trackers of other
    threads do not follow."""
    return Costs(*(COLD * each for each in _tried(functions)))


@cache
def _tried(functions: bool) -> Costs:
    found = [Costs()]

    def measure() -> None:
        with suppress(Exception), torch.enable_grad():  # no report may fail by it
            found.append(_measure(functions))

    do_aside(measure)
    return found[-1]


def counted_ns(
    tracker: Tracker,
    sites: Sequence[Site],
    calls: Sequence[int],
    own_ns: Sequence[int],
    memory: MemorySums | None = None,
) -> int:
    """What the tracker has cost, in nanoseconds, by what it has counted.

    calls, own_ns: how many calls of each site have ended, and their own time.
    """
    if not any(calls):
        return 0
    of = costs(tracker.functions is not None)
    found = 0.0
    if memory is not None:
        [meter] = meters_of(tracker, MemoryMeter)
        found += meter.counting_ns * int(memory.blocks.sum())
    for site, count, ns in zip(sites, calls, own_ns, strict=True):
        found += _nodes(site) * of.node_ns + site.reading_ns
        if site.phase == "profiler":
            found += ns
        elif site.phase != "backward":
            of_call_ns = of.function_ns if site.is_function else of.call_ns
            found += count * of_call_ns * (site.is_function or site.is_called)
    return round(found)


def counted_ns_of_block(
    block: Block, tracker: Tracker, spans: int, nodes: int
) -> float:
    """What a block of steps has cost, in nanoseconds, by what was counted in it.

    spans: how many calls the tracker was told of. nodes: how many autograd nodes were
        made.
    """
    of = costs(tracker.functions is not None)
    if block.kind is Kind.OFF:
        calls = OFF_CALL * spans + OFF_NODE * nodes + OFF_STEP * block.trained
        return of.call_ns * calls
    span_ns = of.call_ns if tracker.functions is None else of.function_ns
    return span_ns * spans + of.node_ns * nodes


def taken_out(sites: Sequence[Site]) -> list[int]:
    """The profiler overhead to subtract from the own time of each site, in nanoseconds;
    it may be more than there is."""
    return [round(max(site.reading_ns, 0)) for site in sites]


def _nodes(site: Site) -> int:
    """How many nodes of backward passes the tracker was told of at `site`."""
    return site.heard


class _Layer(QuietModule):
    """A module that calls some functions: one in C++, and some in Python, which torch
    shows in a slower way. None draws random numbers."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return F.relu(F.relu(value.neg()))


class _Trial(NamedTuple):
    """The fastest rounds of a forward and of a backward, in nanoseconds, and how many
    nodes the tracker was told of in a round."""

    forward_ns: int
    backward_ns: int
    nodes: float


def _measure(functions: bool) -> Costs:
    bare, seen = _run(None), _run(new_tracker())
    call_ns = (seen.forward_ns - bare.forward_ns) / _LAYERS
    node_ns = (seen.backward_ns - bare.backward_ns) / max(seen.nodes, 1)
    found = [call_ns, node_ns]
    if functions:
        from torchprof_hooks.capture.functions.operator_calls import OperatorCalls

        both = _run(new_tracker(functions=OperatorCalls()))
        found += [(both.forward_ns - seen.forward_ns) / (_LAYERS * _FUNCTIONS)]
    return Costs(*map(max, found, _LEAST))


def _run(tracker: Tracker | None) -> _Trial:
    """One layer after the other, with a tracker or without."""
    has_place = interception().place is not None
    interceptor = Interceptor(no_implementation()) if tracker and has_place else None
    kind = with_implementation(_Layer, interceptor) if interceptor else _Layer
    layers = [kind() for _ in range(_LAYERS)]
    forward_ns, backward_ns = list[int](), list[int]()
    given = torch.ones(4, 16, device="cpu", dtype=torch.float32).requires_grad_()
    for _ in range(_ROUNDS):
        with _shown(tracker, layers, interceptor):
            start_ns = perf_counter_ns()
            value = given
            for layer in layers:
                value = layer(value)
            forward_ns.append(perf_counter_ns() - start_ns)
        gradient = torch.ones_like(value)
        with _followed(tracker, value):
            start_ns = perf_counter_ns()
            run_engine(value, gradient)
            backward_ns.append(perf_counter_ns() - start_ns)
    nodes = sum(map(_nodes, tracker.sites)) / _ROUNDS if tracker else 0.0
    return _Trial(min(forward_ns), min(backward_ns), nodes)


@contextmanager
def _shown(
    tracker: Tracker | None,
    layers: Sequence[torch.nn.Module],
    interceptor: Interceptor | None,
) -> Iterator[None]:
    with ExitStack() as stack:
        if interceptor is not None and tracker is not None:
            interceptor.show_to((tracker,))
            stack.callback(interceptor.show_to, ())
        elif tracker is not None:
            pre, post = tracker.forward_pre, tracker.forward_post
            for layer in layers:
                stack.callback(layer.register_forward_pre_hook(pre).remove)
                stack.callback(layer.register_forward_hook(post).remove)
        if tracker is not None and tracker.functions is not None:
            heard = tracker.functions.heard
            attachments.attach(heard, tracker)
            stack.callback(attachments.detach, heard, tracker)
        yield


@contextmanager
def _followed(tracker: Tracker | None, value: torch.Tensor) -> Iterator[None]:
    before = python_pass_begins()  # so that no other tracker hears of the pass
    try:
        if tracker is not None:
            tracker.begin_pass(PassRequest([value.grad_fn], False, False, -1))
        try:
            yield
        finally:
            if tracker is not None:
                tracker.end_pass(None, False)
    finally:
        python_pass_ends(before)
