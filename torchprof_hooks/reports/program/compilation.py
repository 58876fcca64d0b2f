"""The section Compilation: the time in torch.compile, and why it compiled again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from torchprof_hooks.profiles.program.compilation import (
    CacheUse,
    CompilationSummary,
    CompiledGraph,
    CompileStage,
    Reasons,
)
from torchprof_hooks.reports.table import plural

_STAGES: Final = "{:>8} {:>10} {:>7}  {}"
_GRAPHS: Final = "{:>10} {:>6} {:>7}  {}"
#: Levels of stages, and lines of every list, unless all passes are asked for.
_MAIN_LEVELS: Final = 2
_MAX_LINES: Final = 10
_SLOWEST: Final = 5


def compilation_lines(summary: CompilationSummary, every_pass: bool) -> Iterator[str]:
    """The lines of the section. Stages, and the parts of each, are by time.

    every_pass: whether parts of stages are shown down to single passes, together with
        all else that torch times, and lists in full.
    """
    if summary.is_empty:
        yield "   (torch.compile has compiled nothing)"
        return
    count = plural(summary.compilations, "compilation")
    yield f"   Time in torch.compile: {_seconds(summary.total_ns)} in {count}"
    yield from _stage_table(summary, every_pass)
    if summary.caches:
        yield f"   Caches: {'; '.join(map(_cache, summary.caches))}"
    max_lines = None if every_pass else _MAX_LINES
    yield from _reason_lists(summary, max_lines)
    yield from _slowest(summary)


class _Line(NamedTuple):
    ns: int
    calls: int
    text: str


def _stage_table(summary: CompilationSummary, every_pass: bool) -> Iterator[str]:
    yield _STAGES.format("<% time>", "<time>", "<#call>", "<stage>")
    levels = None if every_pass else _MAIN_LEVELS
    for line in _root_lines(summary, levels):
        yield _stage_line(line, summary.total_ns)
    if summary.untimed:
        untimed = plural(summary.untimed, "compilation")
        yield f"   torch._dynamo.reset() has cleared the stages of {untimed}"
    if every_pass and summary.overlapping:
        yield "   What else torch has timed; it overlaps with the above and itself:"
        for stage in _by_time(summary.overlapping):
            yield _stage_line(_Line(stage.ns, stage.calls, stage.name), 0)


def _root_lines(summary: CompilationSummary, levels: int | None) -> Iterator[_Line]:
    for stage in _by_time(summary.stages):
        yield from _stage_lines(stage, 0, levels)
    if summary.run_ns:
        yield _Line(summary.run_ns, 0, "choices made while graphs ran")
    staged_ns = sum(stage.ns for stage in summary.stages) + summary.run_ns
    if summary.total_ns > staged_ns:
        yield _Line(summary.total_ns - staged_ns, 0, "other")


def _stage_lines(
    stage: CompileStage, depth: int, levels: int | None
) -> Iterator[_Line]:
    yield _Line(stage.ns, stage.calls, "  " * depth + stage.name)
    depth += 1
    if stage.parts and (levels is None or depth < levels):
        for part in _by_time(stage.parts):
            yield from _stage_lines(part, depth, levels)
        if stage.other_ns > 0:
            yield _Line(stage.other_ns, 0, "  " * depth + "other")


def _by_time(stages: Sequence[CompileStage]) -> list[CompileStage]:
    return sorted(stages, key=lambda stage: (-stage.ns, stage.name))


def _stage_line(line: _Line, total_ns: int) -> str:
    """A line for a stage, with its share of the total, if there is one."""
    share = f"{100 * line.ns / total_ns:.1f}%" if total_ns else ""
    return _STAGES.format(share, _seconds(line.ns), line.calls or "", line.text)


def _cache(use: CacheUse) -> str:
    counts = (
        plural(use.hits, "hit") if use.hits else "",
        plural(use.misses, "miss", "misses") if use.misses else "",
        f"{use.bypasses} not cacheable" if use.bypasses else "",
    )
    return f"{use.name}: {', '.join(filter(None, counts))}"


def _reason_lists(summary: CompilationSummary, max_lines: int | None) -> Iterator[str]:
    breaks = sorted(summary.graph_breaks, key=lambda each: -each.times)
    lists = {
        "Recompiled": summary.recompiles,
        "Graph breaks": [
            Reasons(each.function, each.place, each.times, (each.reason,))
            for each in breaks
        ],
        "Not compiled, and run as written": summary.failures,
    }
    for title, items in lists.items():
        if items:
            yield f"   {title}: {plural(sum(item.times for item in items), 'time')}"
            yield from map(_item_line, islice(items, max_lines))
            if max_lines is not None and len(items) > max_lines:
                yield f"     ... (and {len(items) - max_lines} more)"
    if summary.unrecorded:
        unrecorded = plural(summary.unrecorded, "compilation")
        yield f"   (torch has dropped its records of the first {unrecorded})"


def _item_line(item: Reasons) -> str:
    code = _code(item.function, item.place) or "(at a place unknown)"
    line = f"     {item.times} * {code}: {item.reasons[0]}"
    more = len(item.reasons) - 1
    return line + (f" (and {plural(more, 'other reason')})" if more else "")


def _code(function: str, place: str) -> str:
    return ", ".join(filter(None, (function, place)))


def _slowest(summary: CompilationSummary) -> Iterator[str]:
    graphs = sorted(summary.graphs, key=lambda graph: -graph.ns)
    if not graphs:
        return
    yield f"   Slowest of {plural(len(graphs), 'compilation')}:"
    yield _GRAPHS.format("<time>", "<#op>", "<cache>", "<code>")
    for graph in graphs[:_SLOWEST]:
        operations = "" if graph.operations is None else graph.operations
        yield _GRAPHS.format(_seconds(graph.ns), operations, graph.cache, _graph(graph))


def _graph(graph: CompiledGraph) -> str:
    code = _code(graph.function, graph.place) or "(unknown)"
    return f"{code} ({' '.join(filter(None, (graph.kind, graph.compile_id)))})"


def _seconds(time_ns: int) -> str:
    return f"{time_ns / 1e9:.3f}s"
