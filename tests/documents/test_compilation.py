"""What documents say of torch.compile: golden documents have a whole section."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.build import MS
from tests.documents.found import block
from torchprof_hooks.documents.build.compilation import compilation_blocks
from torchprof_hooks.documents.document import Facts, Table
from torchprof_hooks.documents.render.text import table_lines
from torchprof_hooks.profiles.compilation import (
    CompilationSummary,
    CompiledGraph,
    GraphBreak,
)


def graph(number: int, ms: int, **fields: Any) -> CompiledGraph:
    made = CompiledGraph("forward", "train.py:31", f"0/{number}", number, ms * MS)
    return made._replace(**fields)


SUMMARY = CompilationSummary(
    timed=8,
    timed_ns=12_000 * MS,
    graphs=(
        graph(0, 2000, kind="backward"),
        graph(0, 5000),
        graph(1, 1500, recompile_reason="k == 1"),
        graph(2, 1000, recompile_reason="k == 2"),
        graph(3, 300, recompile_reason="k == 2"),
        graph(4, 200, failure="recompile limit exceeded"),
    ),
    graph_breaks=(
        GraphBreak("", "", "Call to `print`", 1),
        GraphBreak("forward", "train.py:35", "Data-dependent branching", 3),
    ),
)


def said(summary: CompilationSummary, *, full: bool = False) -> Facts:
    return block(compilation_blocks(summary, full=full), Facts)


def slowest(summary: CompilationSummary, *, full: bool = False) -> Table:
    return block(compilation_blocks(summary, full=full), Table)


def test_lists_in_full() -> None:
    breaks = tuple(GraphBreak("f", f"a.py:{n}", "x" * 80, 1) for n in range(12))
    summary = replace(SUMMARY, graph_breaks=breaks)
    few, every = said(summary).lines, said(summary, full=True).lines
    assert "  ... (and 2 more)" in few
    assert len(every) == len(few) + 1
    few, every = (
        table_lines(slowest(summary, full=full), width=100) for full in (False, True)
    )
    assert len(every) == len(few)  # all six, or five and what remains


def test_code_from_a_cache_looks_cheap() -> None:
    hits = replace(SUMMARY, graphs=(graph(0, 20, is_cached=True), graph(1, 900)))
    assert said(hits).lines[0].endswith("; torch had 1 of them in a cache")
    assert "cache" not in said(SUMMARY).lines[0]


def test_nothing_was_compiled() -> None:
    assert [*compilation_blocks(CompilationSummary(), full=True)] == []
    timed = CompilationSummary(timed=1, timed_ns=MS)
    [only] = compilation_blocks(timed, full=True)
    assert isinstance(only, Facts)
