"""Whose the kernels are that CUDA graphs have run for compiled code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchprof_hooks.profiles.trace.host_places import HostPlace
from torchprof_hooks.profiles.trace.step_trace import (
    DeviceActivity,
    GraphCall,
    StepTrace,
)

_Graph = list[DeviceActivity]
_Found = Iterator[tuple[int, HostPlace]]


def places_in_graphs(trace: StepTrace) -> dict[int, HostPlace]:
    """Where it is certain, the places of what CUDA graphs have run for compiled code,
    by `id` of the activity. One launch has run all of a graph, in the order in which it
    was captured."""
    graphs: dict[tuple[int, int | None], _Graph] = {}
    for each in sorted(trace.activities, key=lambda each: each.start_ns):
        if each.of_graph and each.launch_ns is not None:
            graphs.setdefault((each.launch_ns, each.thread), []).append(each)
    found: dict[int, HostPlace] = {}
    for call in trace.launches:
        own = [
            graph
            for (launch_ns, thread), graph in sorted(graphs.items())
            if call.start_ns <= launch_ns < call.end_ns
            and thread in (None, call.thread)
        ]
        if len(own) == len(call.graphs):
            for graph, calls in zip(own, call.graphs, strict=True):
                found.update(_divided(graph, calls))
    return found


def _divided(graph: _Graph, calls: Sequence[GraphCall]) -> _Found:
    """Kernels whose names are known, such as those of Triton, have to be there one by
    one."""
    names = {call.kernel for call in calls if call.kernel}
    ran = [number for number, each in enumerate(graph) if each.name in names]
    known = [number for number, call in enumerate(calls) if call.kernel]
    if [graph[n].name for n in ran] != [calls[n].kernel for n in known]:
        return
    for number, of in zip(ran, known, strict=True):
        yield id(graph[number]), _place(calls[of])
    ends = zip([-1, *ran], [*ran, None], [-1, *known], [*known, None], strict=True)
    for begin, end, first, last in ends:
        yield from _between(graph[begin + 1 : end], calls[first + 1 : last])


def _between(ran: _Graph, calls: Sequence[GraphCall]) -> _Found:
    """Kernels of one call are its own. Of several calls, each has run one, if there are
    as many and none can have run nothing."""
    if len(calls) == 1:
        yield from ((id(each), _place(calls[0])) for each in ran)
    elif len(calls) == len(ran) and all(call.runs_any for call in calls):
        yield from zip(map(id, ran), map(_place, calls), strict=True)


def _place(call: GraphCall) -> HostPlace:
    return HostPlace(call.path, call.phase)
