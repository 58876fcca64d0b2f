from __future__ import annotations

from dataclasses import replace

from torchprof_hooks.profiles.compilation import (
    CompilationSummary,
    CompiledGraph,
    GraphBreak,
    Reasons,
)

FIRST = CompiledGraph("forward", "a.py:1", "0/0", 10, 600)
BACKWARD = CompiledGraph("forward", "a.py:1", "0/0", 700, 100, "backward")
AGAIN = CompiledGraph(
    "forward", "a.py:1", "0/1", 900, 300, recompile_reason="size of x"
)
LIMIT = CompiledGraph(
    "forward", "a.py:1", "0/2", 950, 5, recompile_reason="k == 1", failure="limit"
)
RUN = CompiledGraph("", "", "", 990, 50, "run")

# Two compilations of a function and one of its backward, of 600 + 100 + 300.
BREAK = GraphBreak("forward", "a.py:2", "print", 2)
SUMMARY = CompilationSummary(
    timed=3,
    timed_ns=1000,
    graphs=(FIRST, BACKWARD, AGAIN),
    graph_breaks=(BREAK,),
    first_ns=600,
)
# The same a while before: one compilation.
EARLIER = CompilationSummary(
    timed=1,
    timed_ns=600,
    graphs=(FIRST,),
    graph_breaks=(BREAK._replace(times=1),),
    first_ns=600,
)


def test_compilations_and_their_time() -> None:
    nothing, all_ = CompilationSummary(), SUMMARY.graphs
    assert (nothing.is_empty, nothing.total_ns, SUMMARY.is_empty) == (True, 0, False)
    for found, total_ns, unrecorded in [
        (SUMMARY, 1000, 0),  # the same time, timed and recorded
        (replace(SUMMARY, graphs=(*all_, RUN)), 1050, 0),
        (replace(SUMMARY, graphs=(AGAIN,)), 1000, 2),  # torch has dropped records
        (CompilationSummary(graphs=all_), 1000, 0),  # torch has cleared times
    ]:
        assert (found.compilations, found.total_ns) == (3, total_ns)
        assert (found.unrecorded, found.run_ns) == (unrecorded, total_ns - 1000)


def test_why_code_was_compiled_again() -> None:
    other = AGAIN._replace(function="loss", place="a.py:9")
    twice = AGAIN._replace(recompile_reason="k == 1")
    summary = CompilationSummary(graphs=(FIRST, other, AGAIN, twice, twice, LIMIT))
    assert summary.recompiles == (
        Reasons("forward", "a.py:1", 3, ("k == 1", "size of x")),
        Reasons("loss", "a.py:9", 1, ("size of x",)),
    )
    assert summary.failures == (Reasons("forward", "a.py:1", 1, ("limit",)),)


def test_since_leaves_out_what_was_before() -> None:
    assert SUMMARY.since(EARLIER) == CompilationSummary(
        timed=2,
        timed_ns=400,
        graphs=(BACKWARD, AGAIN),
        graph_breaks=(BREAK._replace(times=1),),
        first_ns=600,
    )
    assert SUMMARY.since(SUMMARY).is_empty
    assert SUMMARY.since(SUMMARY).total_ns == 0
    assert SUMMARY.since(CompilationSummary()) == SUMMARY


def test_since_a_state_that_torch_has_cleared() -> None:
    # After a reset: the next compilation takes as long as all before, more or less.
    after = CompiledGraph("forward", "a.py:1", "0/0", 2000, 700)
    now = CompilationSummary(
        timed=1,
        timed_ns=700,
        graphs=(*EARLIER.graphs, after),
        graph_breaks=(GraphBreak("", "", "print", 1), BREAK._replace(times=1)),
        first_ns=700,
    )
    assert now.since(EARLIER) == CompilationSummary(
        timed=1,
        timed_ns=700,
        graphs=(after,),
        graph_breaks=(GraphBreak("", "", "print", 1),),
        first_ns=700,
    )
