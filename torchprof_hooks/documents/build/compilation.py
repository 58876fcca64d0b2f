"""What torch.compile did: how long it took, what it compiled again, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from torchprof_hooks.documents.document import Block, Column, Facts, Table
from torchprof_hooks.documents.render.units import best_time
from torchprof_hooks.documents.words import plural
from torchprof_hooks.profiles.compilation import (
    CompilationSummary,
    CompiledGraph,
    GraphBreak,
    Reasons,
)

#: The most lines of each list, and rows of the table, by default.
_MOST: Final = 10
_SLOWEST: Final = 5


def compilation_blocks(summary: CompilationSummary, *, full: bool) -> Iterator[Block]:
    """The time, and the reasons for recompiles, graph breaks and failures; and the
    slowest compilations; all of the whole run. Nothing if nothing was compiled.

    full: whether the lists are complete.
    """
    if summary.is_empty:
        return
    count = plural(summary.compilations, "compilation")
    taken = f"{best_time(summary.total_ns)} in {count}, in the whole run"
    cached = sum(graph.is_cached for graph in summary.graphs)
    taken += f"; torch had {cached} of them in a cache" * bool(cached)
    lines = [f"Time in torch.compile: {taken}"]
    lines += _lists(summary, None if full else _MOST)
    numbers = {
        "compilations": summary.compilations,
        "compiling_ns": summary.total_ns,
        "recompiles": sum(each.times for each in summary.recompiles),
        "graph_breaks": sum(each.times for each in summary.graph_breaks),
        "failures": sum(each.times for each in summary.failures),
    }
    yield Facts("compilation", "Compilation", lines, numbers)
    graphs = sorted(summary.graphs, key=lambda graph: -graph.ns)
    if graphs:
        yield _slowest(graphs, len(graphs) if full else _SLOWEST)


def _lists(summary: CompilationSummary, most: int | None) -> Iterator[str]:
    lists: dict[str, Sequence[Reasons | GraphBreak]] = {
        "Recompiled": summary.recompiles,
        "Graph breaks": sorted(summary.graph_breaks, key=lambda each: -each.times),
        "Not compiled, and run as written": summary.failures,
    }
    for title, items in lists.items():
        if items:
            yield f"{title}: {plural(sum(item.times for item in items), 'time')}"
            yield from map(_line, islice(items, most))
            if most is not None and len(items) > most:
                yield f"  ... (and {len(items) - most} more)"
    if summary.unrecorded:
        unrecorded = plural(summary.unrecorded, "compilation")
        yield f"(torch has dropped its records of the first {unrecorded})"


def _line(item: Reasons | GraphBreak) -> str:
    code = _code(item.function, item.place) or "(at a place unknown)"
    more = len(item.reasons) - 1
    others = f" (and {plural(more, 'other reason')})" if more else ""
    return f"  {item.times} * {code}: {item.reasons[0]}{others}"


def _code(function: str, place: str) -> str:
    name, comma, more = function.partition(",")  # of what was resumed
    return ", ".join(filter(None, (function and f"{name}(){comma}{more}", place)))


def _slowest(graphs: Sequence[CompiledGraph], most: int) -> Table:
    times = [graph.ns for graph in graphs]
    return Table(
        "compiled_graphs",
        "Slowest compilations",
        "code",
        [_graph_label(graph) for graph in graphs],
        [Column("time", "ns", times, "ns", shows_zeros=True)],
        most=most,
    )


def _graph_label(graph: CompiledGraph) -> str:
    code = _code(graph.function, graph.place) or "(unknown)"
    kind = "in a run" if graph.kind == "run" else f"{graph.kind} graph"
    return f"{code} ({' '.join(filter(None, (kind, graph.compile_id)))})"
