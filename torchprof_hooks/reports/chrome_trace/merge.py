"""The traces of several ranks as one, on one time axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

#: How far the process numbers and sort indices of a rank are from those of the next.
_ROOM: Final = 1_000_000
#: Phases of events that belong together by their "id": flows, and asynchronous ones.
_WITH_ID: Final = frozenset("stfbenNOD")


def merged_traces(traces: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """The Chrome traces of several ranks as one.

    traces: documents by rank, as `ProfilerHook` writes them.

    Times are those of the machines' clocks: those of several machines agree as well as
    they are set (NTP: a millisecond or so). Each process gets a number of its own, and
    its rank in front of its name.

    Raises:
        ValueError: one of them is no trace, or does not say when it began.

    Example::

        {"baseTimeNanoseconds": 1795394568000000000, "displayTimeUnit": "ms",
         "traceEvents": [{"name": "process_name", "ph": "M", "pid": 1000000,
                          "args": {"name": "rank 1: python"}}, ...]}
    """
    bases = {rank: _base_ns(rank, trace) for rank, trace in traces.items()}
    first_ns = min(bases.values())
    events: list[dict[str, Any]] = []
    for rank in sorted(traces):
        later_us = (bases[rank] - first_ns) / 1000
        events += _moved(traces[rank]["traceEvents"], rank, later_us)
    return {
        "baseTimeNanoseconds": first_ns,
        "displayTimeUnit": "ms",
        "traceEvents": events,
    }


def _base_ns(rank: int, trace: Any) -> int:
    is_trace = isinstance(trace, dict) and isinstance(trace.get("traceEvents"), list)
    base = trace.get("baseTimeNanoseconds") if is_trace else None
    if type(base) is not int:
        raise ValueError(f"the trace of rank {rank} does not say when it began")
    return base


def _moved(events: list[Any], rank: int, later_us: float) -> Iterator[dict[str, Any]]:
    """The events of a rank, in processes of their own, and `later_us` later."""
    processes: dict[Any, int] = {}
    unnamed: dict[int, Any] = {}
    for event in events:
        if not isinstance(event, dict):
            continue
        moved = {**event}
        if "pid" in event:
            process = event["pid"]
            moved["pid"] = rank * _ROOM + processes.setdefault(process, len(processes))
            unnamed.setdefault(moved["pid"], process)
        if event.get("ph") == "M":
            _name_rank(moved, rank)
        else:
            _move(moved, rank, later_us)
        if event.get("name") == "process_name":
            unnamed[moved["pid"]] = None
        yield moved
    for number, process in unnamed.items():
        if process is not None:
            named = {"name": f"rank {rank}: {process}"}
            yield {"name": "process_name", "ph": "M", "pid": number, "args": named}


def _move(event: dict[str, Any], rank: int, later_us: float) -> None:
    if "ts" in event:
        event["ts"] += later_us
    if "id" in event and event.get("ph") in _WITH_ID:
        event["id"] = f"{rank}:{event['id']}"


def _name_rank(event: dict[str, Any], rank: int) -> None:
    arguments = dict(event.get("args") or {})
    if event.get("name") == "process_name":
        arguments["name"] = f"rank {rank}: {arguments.get('name', '')}"
    elif event.get("name") == "process_sort_index":
        order = arguments.get("sort_index")
        inside = order if isinstance(order, int) else 0
        arguments["sort_index"] = rank * _ROOM + min(max(inside, 0), _ROOM - 1)
    event["args"] = arguments
