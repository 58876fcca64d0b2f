from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchprof_hooks.profiles.program.compilation import (
    CacheUse,
    CompilationSummary,
    CompiledGraph,
    CompileStage,
    GraphBreak,
)
from torchprof_hooks.reports.program.compilation import compilation_lines

MS = 10**6


def graph(number: int, ms: int, **fields: Any) -> CompiledGraph:
    made = CompiledGraph("forward", "train.py:31", f"0/{number}", number, ms * MS)
    return made._replace(**fields)


GRAPHS = (
    graph(0, 5000, operations=12, cache="miss"),
    graph(0, 2000, kind="backward", cache="miss"),
    graph(1, 1500, operations=12, cache="hit", recompile_reason="k == 1"),
    graph(2, 1000, recompile_reason="k == 2"),
    graph(3, 300, recompile_reason="k == 2"),
    graph(4, 200, failure="recompile limit exceeded"),
)
# Of ten seconds.
STAGES = (
    CompileStage("Dynamo", 2500 * MS, 5, (CompileStage("tracing", 2500 * MS, 6),)),
    CompileStage(
        "Inductor",
        7500 * MS,
        4,
        (
            CompileStage(
                "post-grad passes",
                1000 * MS,
                4,
                (CompileStage("b", 300 * MS, 4), CompileStage("a", 300 * MS, 4)),
            ),
            CompileStage("loading", 6000 * MS, 4, (CompileStage("w", 6000 * MS, 4),)),
        ),
    ),
)
SUMMARY = CompilationSummary(
    stages=STAGES,
    overlapping=(
        CompileStage("compile_attempt_0", 100 * MS, 5),
        CompileStage("compile_file", 9000 * MS, 3),
    ),
    timed=6,
    graphs=GRAPHS,
    graph_breaks=(
        GraphBreak("", "", "Call to `print`", 1),
        GraphBreak("forward", "train.py:35", "Data-dependent branching", 3),
    ),
    caches=(CacheUse("FX graphs", 1, 4), CacheUse("AOTAutograd", 0, 0, 2)),
)

LISTS = """\
   Caches: FX graphs: 1 hit, 4 misses; AOTAutograd: 2 not cacheable
   Recompiled: 3 times
     3 * forward, train.py:31: k == 2 (and 1 other reason)
   Graph breaks: 4 times
     3 * forward, train.py:35: Data-dependent branching
     1 * (at a place unknown): Call to `print`
   Not compiled, and run as written: 1 time
     1 * forward, train.py:31: recompile limit exceeded
   Slowest of 6 compilations:
    <time>  <#op> <cache>  <code>
    5.000s     12    miss  forward, train.py:31 (forward 0/0)
    2.000s           miss  forward, train.py:31 (backward 0/0)
    1.500s     12     hit  forward, train.py:31 (forward 0/1)
    1.000s                 forward, train.py:31 (forward 0/2)
    0.300s                 forward, train.py:31 (forward 0/3)"""


def section(summary: CompilationSummary, every_pass: bool = False) -> str:
    lines = compilation_lines(summary, every_pass)
    return "\n".join(line.rstrip() for line in lines)


def test_the_whole_section() -> None:
    # Inductor: 7.5, of which 6 and 1 are parts; the parts of Dynamo are all of it.
    assert (
        section(SUMMARY)
        == """\
   Time in torch.compile: 10.000s in 6 compilations
<% time>     <time> <#call>  <stage>
   75.0%     7.500s       4  Inductor
   60.0%     6.000s       4    loading
   10.0%     1.000s       4    post-grad passes
    5.0%     0.500s            other
   25.0%     2.500s       5  Dynamo
   25.0%     2.500s       6    tracing
"""
        + LISTS
    )


def test_every_pass() -> None:
    assert (
        section(SUMMARY, every_pass=True)
        == """\
   Time in torch.compile: 10.000s in 6 compilations
<% time>     <time> <#call>  <stage>
   75.0%     7.500s       4  Inductor
   60.0%     6.000s       4    loading
   60.0%     6.000s       4      w
   10.0%     1.000s       4    post-grad passes
    3.0%     0.300s       4      a
    3.0%     0.300s       4      b
    4.0%     0.400s              other
    5.0%     0.500s            other
   25.0%     2.500s       5  Dynamo
   25.0%     2.500s       6    tracing
   What else torch has timed; it overlaps with the above and itself:
             9.000s       3  compile_file
             0.100s       5  compile_attempt_0
"""
        + LISTS
    )


def test_nothing_was_compiled() -> None:
    assert section(CompilationSummary()) == ("   (torch.compile has compiled nothing)")


def test_what_was_cleared_and_dropped_is_said() -> None:
    # Recorded: 10 s; the stages of 8 s of them are gone.
    cleared = replace(
        SUMMARY,
        stages=(CompileStage("Dynamo", 2000 * MS, 1),),
        overlapping=(),
        timed=1,
        graph_breaks=(),
        caches=(),
    )
    assert section(cleared).splitlines()[:5] == [
        "   Time in torch.compile: 10.000s in 6 compilations",
        "<% time>     <time> <#call>  <stage>",
        "   20.0%     2.000s       1  Dynamo",
        "   80.0%     8.000s          other",
        "   torch._dynamo.reset() has cleared the stages of 5 compilations",
    ]
    dropped = replace(SUMMARY, graphs=GRAPHS[-1:], graph_breaks=(), caches=())
    assert section(dropped).splitlines()[-6:] == [
        "   Not compiled, and run as written: 1 time",
        "     1 * forward, train.py:31: recompile limit exceeded",
        "   (torch has dropped its records of the first 5 compilations)",
        "   Slowest of 1 compilation:",
        "    <time>  <#op> <cache>  <code>",
        "    0.200s                 forward, train.py:31 (forward 0/4)",
    ]


def test_choices_made_at_run_time() -> None:
    run = graph(0, 2500, kind="run", function="", place="", compile_id="")
    lines = section(replace(SUMMARY, graphs=(*GRAPHS, run))).splitlines()
    assert lines[0] == "   Time in torch.compile: 12.500s in 6 compilations"
    assert "   20.0%     2.500s          choices made while graphs ran" in lines
    assert "    2.500s                 (unknown) (run)" in lines


def test_long_lists_are_cut() -> None:
    breaks = tuple(GraphBreak("f", f"a.py:{n}", "x" * 80, 1) for n in range(12))
    summary = replace(SUMMARY, graph_breaks=breaks)
    text = section(summary)
    assert "     1 * f, a.py:9: " + "x" * 80 in text.splitlines()
    assert "     ... (and 2 more)" in text
    assert "a.py:11" not in text
    assert "a.py:11" in section(summary, every_pass=True)
