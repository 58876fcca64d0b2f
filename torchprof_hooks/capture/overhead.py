"""What measuring costs: how often things were done, times what each takes in a short
trial on this machine; and what of that is taken out of rows.

Rows are as measured, but for two things: time that was read to be the profiler's own
(finding the row of a new call, reading meters, what is done at the end of a step), and,
where functions are shown by Python, what that takes in the time of whoever calls them.
Both go to the row of the profiler's.
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
    seen_pass_begins,
    seen_pass_ends,
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
from torchprof_hooks.capture.tracking.make_tracker import new_functions, new_tracker
from torchprof_hooks.capture.tracking.meters.memory import MemoryMeter
from torchprof_hooks.capture.tracking.meters.meters import meters_of
from torchprof_hooks.capture.tracking.tracker import Tracker

#: In a program, our code has been pushed out of the processor's caches by the program's
#: own work, and takes about so many times as long as in the trial.
COLD: Final = 2.0
#: What off blocks cost, in calls of modules: by calls from outside, which are short and
#: many where they matter; by nodes, as many calls inside are looked at and left; and by
#: training steps, for code that runs once in a step is in no cache.
FLAT_CALL: Final = 0.4
FLAT_NODE: Final = 0.1
FLAT_STEP: Final = 25.0
#: The trial: so many layers, and so many rounds, of which the fastest counts.
_LAYERS: Final = 16
_FUNCTIONS: Final = 3  # that each calls
_ROUNDS: Final = 6
#: No machine measures the call of a module, or a node, in less, so many nanoseconds: a
#: trial that finds less was disturbed. What functions take is taken out of rows, so
#: that nothing may be made up there.
_LEAST: Final = (100.0, 50.0, 0.0)


class Costs(NamedTuple):
    """Nanoseconds that measuring adds to a program: by a call of a module, by a node of
    a backward pass, and by a call of a function."""

    call_ns: float = 0.0
    node_ns: float = 0.0
    function_ns: float = 0.0


def costs(functions: bool) -> Costs:
    """What measuring costs on this machine; zeros if that cannot be tried. The first
    time takes some milliseconds, in a thread of its own, which trackers of other
    threads do not follow."""
    return Costs(*(COLD * each for each in _tried(functions)))


@cache
def _tried(functions: bool) -> Costs:
    found = [Costs()]

    def measure() -> None:
        with suppress(Exception), torch.enable_grad():  # a report must not fail by it
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
    """What the tracker has cost, by what it has counted.

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
    """What a block of steps has cost, by what was counted in it.

    spans: how many calls the tracker was told of. nodes: how many were made.
    """
    of = costs(tracker.functions is not None)
    if block.kind is Kind.OFF:
        calls = FLAT_CALL * spans + FLAT_NODE * nodes + FLAT_STEP * block.trained
        return of.call_ns * calls
    span_ns = of.call_ns if tracker.functions is None else of.function_ns
    return span_ns * spans + of.node_ns * nodes


def taken_out(
    tracker: Tracker, sites: Sequence[Site], calls: Sequence[int]
) -> list[int]:
    """How much of the own time of each site is the profiler's, in nanoseconds, as far
    as there is so much. calls: of each site."""
    taken_ns: list[float] = [site.reading_ns for site in sites]
    if tracker.functions is not None and tracker.functions.runs_python and any(calls):
        function_ns = costs(functions=True).function_ns
        for site, count in zip(sites, calls, strict=True):
            if site.is_function and site.phase != "backward":
                taken_ns[site.caller.code] += count * function_ns
    return [round(max(taken, 0)) for taken in taken_ns]


def _nodes(site: Site) -> int:
    """How many nodes of backward passes the tracker was told of at `site`."""
    return site.heard


class _Layer(QuietModule):
    """A module that calls some functions, in C++ and in Python, which torch shows in a
    slower way; none that draws random numbers."""

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
        both = _run(new_tracker(functions=new_functions(by_shapes=True)))
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
            shown_by = tracker.functions.shown_by
            attachments.attach(shown_by, tracker)
            stack.callback(attachments.detach, shown_by, tracker)
        yield


@contextmanager
def _followed(tracker: Tracker | None, value: torch.Tensor) -> Iterator[None]:
    before = seen_pass_begins()  # no other tracker is to hear of it
    try:
        if tracker is not None:
            tracker.begin_pass(PassRequest([value.grad_fn], False, False, -1))
        try:
            yield
        finally:
            if tracker is not None:
                tracker.end_pass(None, False)
    finally:
        seen_pass_ends(before)
