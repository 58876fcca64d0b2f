"""Reads what torch.compile has done so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torchprof_hooks.capture.torch_names.compile_metrics import (
    Timings,
    cache_uses,
    compile_timings,
    compiled_graphs,
    graph_break_counts,
    graph_breaks,
    one_line,
)
from torchprof_hooks.capture.torch_names.compile_stages import (
    COMPILATIONS,
    STAGES,
    StageSource,
)
from torchprof_hooks.profiles.program.compilation import (
    CompilationSummary,
    CompileStage,
    GraphBreak,
)


def read_compilation() -> CompilationSummary:
    """What torch.compile has done in this process so far. Never imports it.

    ``read_compilation().since(earlier)`` is what it has done after an earlier reading.
    """
    timings = compile_timings()
    placed: set[str] = set()
    stages = tuple(
        stage for source in STAGES for stage in _stages(source, timings, placed)
    )
    overlapping = tuple(
        CompileStage(name, sum(calls), len(calls))
        for name, calls in timings.items()
        if calls and name not in placed
    )
    return CompilationSummary(
        stages=stages,
        overlapping=overlapping,
        timed=sum(len(timings.get(name, ())) for name in COMPILATIONS),
        graphs=tuple(compiled_graphs()),
        graph_breaks=tuple(_graph_breaks()),
        caches=tuple(cache_uses()),
        first_ns=next(
            (timings[name][0] for name in COMPILATIONS if timings.get(name)), 0
        ),
    )


def _stages(
    source: StageSource, timings: Timings, placed: set[str]
) -> Iterator[CompileStage]:
    """The stage, if it took any time. Adds the timings that it shows to `placed`."""
    inside: set[str] = set()
    parts = [stage for part in source.parts for stage in _stages(part, timings, inside)]
    parts += _passes(source, timings, inside)
    added_ns = sum(sum(timings.get(name, ())) for name in source.timed)
    taken_ns = sum(sum(timings.get(name, ())) for name in source.without)
    calls = sum(len(timings.get(name, ())) for name in source.calls_of)
    if calls and added_ns > taken_ns:
        stage = CompileStage(source.name, added_ns - taken_ns, calls, tuple(parts))
        placed |= {*source.timed, *(inside if stage.fitted() is stage else ())}
        yield stage.fitted()


def _passes(
    source: StageSource, timings: Timings, placed: set[str]
) -> Iterator[CompileStage]:
    for name, calls in timings.items():
        if source.passes and name.startswith(source.passes) and calls:
            placed.add(name)
            yield CompileStage(name.removeprefix(source.passes), sum(calls), len(calls))


def _graph_breaks() -> Iterator[GraphBreak]:
    """Counted by place; where torch has forgotten the place, by reason."""
    placed = list(graph_breaks())
    found = Counter(each for each, _ in placed)
    texts = Counter(text for _, text in placed)
    for text, times in graph_break_counts().items():
        if times > texts[text]:
            found[GraphBreak("", "", one_line(text), 1)] += times - texts[text]
    for each, times in found.most_common():
        yield each._replace(times=times)
