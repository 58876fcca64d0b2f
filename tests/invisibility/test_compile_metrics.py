"""What torch.compile says of itself; in processes of their own, so that it starts
from nothing, and torch._dynamo.reset() clears nobody else's."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import running
from torchprof_hooks.kernel.torch_names.compile_metrics import (
    one_line,
    read_compilation,
)
from torchprof_hooks.profiles.compilation import CompilationSummary

READ = """
import pickle, sys
from torchprof_hooks.kernel.torch_names.compile_metrics import read_compilation
readings = {}
def read(name):
    readings[name] = read_compilation()
read("nothing imported")
assert "torch._dynamo" not in sys.modules
import time, torch
"""

BREAKING = """
def slow_backend(graph, inputs):
    time.sleep(0.1)
    return graph.forward

@torch.compile(backend=slow_backend)
def broken(x):
    x = x + 1
    torch._dynamo.graph_break()  # the break
    return x * 2

@torch.compile(backend="eager", dynamic=False)
def scaled(x, k):
    return x * k

@torch.compile(backend="eager")
def given_up(x):
    for _ in range(2):
        x = x + 1
        torch._dynamo.graph_break()
    return x

@torch.compile(backend="eager")
def branching(x):
    if x.sum() > 0:
        x = x + 1
    return x

x = torch.ones(3)
for _ in range(3):
    broken(x)
read("broken")
for k in (2, 2, 3, 4):
    scaled(x, k)
scaled(x.double(), 4)
given_up(x)
branching(x)
read("all")
torch_total_s = torch._dynamo.utils.calculate_time_spent()["total_wall_time"]
"""

#: A backward graph, and nothing that needs a compiler for C++.
TRAINING = """
import torch._inductor.config
torch._inductor.config.compile_threads = 1

@torch.compile
def function(x):
    return x @ x

for _ in range(2):
    function(torch.ones(3, 3, requires_grad=True)).backward(torch.ones(3, 3))
read("all")
torch_total_s = torch._dynamo.utils.calculate_time_spent()["total_wall_time"]
"""


def place(program: str, code: str) -> str:
    """Where in the program this is."""
    lines = (READ + program).lstrip().splitlines()
    (found,) = (n for n, line in enumerate(lines, start=1) if code in line)
    return f"program.py:{found}"


class Readings(dict[str, CompilationSummary]):
    torch_total_s: float


def run(
    directory: Path, text: str, loaded: tuple[str, ...] = running.TRAINING
) -> Readings:
    """What a program reads; nothing that it compiles is cached already."""
    program = directory / "program.py"
    end = "print(pickle.dumps([torch_total_s, readings]).hex())\n"
    program.write_text((READ + text).lstrip() + end)
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(directory / "cache")}
    done = running.python(str(program), environment=environment, loaded=loaded)
    assert done.returncode == 0, done.stderr
    torch_total_s, contents = pickle.loads(bytes.fromhex(done.stdout.splitlines()[-1]))
    readings = Readings(contents)
    readings.torch_total_s = torch_total_s
    return readings


def check_times(summary: CompilationSummary, torch_total_s: float) -> None:
    """They are all of torch's own total."""
    assert summary.timed_ns == summary.total_ns
    assert summary.total_ns == pytest.approx(1e9 * torch_total_s, abs=1e5)
    recorded_ns = sum(graph.ns for graph in summary.graphs)
    assert recorded_ns == pytest.approx(summary.total_ns, abs=1e5)


@pytest.fixture(scope="module")
def breaking(tmp_path_factory: pytest.TempPathFactory) -> Readings:
    return run(tmp_path_factory.mktemp("breaking"), BREAKING)


def test_nothing_is_imported_to_read_it(breaking: Readings) -> None:
    assert breaking["nothing imported"] == CompilationSummary()


def test_time_is_that_of_all_compilations(breaking: Readings) -> None:
    summary = breaking["broken"]
    assert summary.timed == 2
    assert summary.timed_ns >= 0.2e9  # two graphs, a tenth of a second each
    assert all(graph.ns >= 0.1e9 for graph in summary.graphs)
    check_times(breaking["all"], breaking.torch_total_s)


def test_graphs(breaking: Readings) -> None:
    graphs = breaking["broken"].graphs
    assert [graph[:3] for graph in graphs] == [
        ("broken", place(BREAKING, "backend=slow"), "0/0"),
        ("broken, resumed", place(BREAKING, "# the break"), "1/0"),
    ]
    assert {graph.kind for graph in graphs} == {"forward"}


def test_graph_breaks(breaking: Readings) -> None:
    call, branch = breaking["all"].graph_breaks
    there = place(BREAKING, "# the break")
    assert (call.function, call.place, call.times) == ("broken", there, 1)
    assert call.reason.startswith("Call to `torch._dynamo.graph_break()`: User-insert")
    assert "Hint" not in call.reason
    assert "\n" not in call.reason
    assert branch[:2] == ("branching", place(BREAKING, "if x.sum()"))
    assert branch.reason.startswith("Data-dependent branching (")


def test_recompiles(breaking: Readings) -> None:
    # For k = 2, 3 and 4, and of another dtype; the first is no recompile.
    (scaled,) = breaking["all"].recompiles
    assert scaled[:3] == ("scaled", place(BREAKING, "dynamic=False"), 3)
    assert set(scaled.reasons[:2]) == {"k == 2", "k == 3"}
    assert (
        scaled.reasons[2] == "tensor 'x' dtype mismatch. expected Float, actual Double"
    )


def test_code_that_could_not_be_compiled(breaking: Readings) -> None:
    records: Any = pytest.importorskip("torch._dynamo.utils").CompilationMetrics
    # Of a graph break in a loop, torch 2.8 and 2.10 record nothing; 2.13 does.
    if not hasattr(records, "inductor_fx_local_cache_miss_count"):
        assert breaking["all"].failures == ()
        return
    (failure,) = breaking["all"].failures
    assert (failure.function, failure.times) == ("given_up", 1)
    assert "graph_break()" in failure.reasons[0]


@pytest.mark.thorough
def test_graphs_of_a_backward_pass(tmp_path: Path) -> None:
    readings = run(tmp_path, TRAINING, ("torch._inductor.compile_fx",))
    graphs = readings["all"].graphs
    assert [graph.kind for graph in graphs] == ["forward", "backward"]
    assert {graph.place for graph in graphs} == {place(TRAINING, "@torch.compile")}
    check_times(readings["all"], readings.torch_total_s)


#: Names of torch's -> what they tell.
NEEDED_FOR = {
    "compilation_time_metrics": "timed",
    "get_compilation_metrics": "graphs",
    "counters": "",
    "graph_break_reasons": "",
}


@pytest.mark.parametrize("missing", NEEDED_FOR)
def test_a_name_that_torch_has_dropped(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    utils: Any = pytest.importorskip("torch._dynamo.utils")
    torch.compile(torch.sin, backend="eager")(torch.ones(2))
    monkeypatch.delattr(utils, missing)
    summary = read_compilation()
    for told in ("timed", "graphs"):
        assert bool(getattr(summary, told)) == (NEEDED_FOR[missing] != told)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0/1: k == 1            # return x * k  # a.py:3 in f", "k == 1"),
        ("tensor 'x' is: odd", "tensor 'x' is: odd"),
        ("0/0: G['a']: b\nUser stack trace:\n  File", "G['a']: b"),
        (
            "backend='b' raised:\nValueError: no\n\nfrom here",
            "backend='b' raised: Value",
        ),
        ("T\n  Explanation: Because\n  of it.\n  Hint: No.\n", "T: Because of it."),
        ("T\n  Explanation: So.\n\n  Developer debug context: x", "T: So."),
        ("", ""),
    ],
)
def test_reasons_in_one_line(text: str, expected: str) -> None:
    assert one_line(text).startswith(expected)
    assert len(one_line(text)) < len(expected) + 12
    assert len(one_line("long " * 1000)) == 400
