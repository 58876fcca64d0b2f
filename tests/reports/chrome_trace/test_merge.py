"""Traces of several ranks on one time axis."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.distributed.processes import run_processes
from torchprof_hooks.program.cli import main
from torchprof_hooks.reports.chrome_trace.merge import merged_traces

BASE_NS = 1_795_394_568_000_000_000


def trace(later_ns: int, *events: dict[str, Any]) -> dict[str, Any]:
    return {"baseTimeNanoseconds": BASE_NS + later_ns, "traceEvents": list(events)}


FORWARD = {"ph": "X", "name": "forward", "pid": 7, "tid": 1, "ts": 10.0, "dur": 5.0}
NAME = {
    "ph": "M",
    "name": "process_name",
    "pid": 7,
    "ts": 0,
    "args": {"name": "python"},
}
FLOW = {"ph": "s", "name": "fwdbwd", "pid": 7, "tid": 1, "ts": 11.0, "id": 3}


def of_rank(merged: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    return [e for e in merged["traceEvents"] if e["pid"] // 1_000_000 == rank]


def test_times_are_on_one_axis() -> None:
    merged = merged_traces({0: trace(2_500, FORWARD), 1: trace(0, FORWARD)})
    assert merged["baseTimeNanoseconds"] == BASE_NS
    [first] = [e for e in of_rank(merged, 0) if e["ph"] == "X"]
    [second] = [e for e in of_rank(merged, 1) if e["ph"] == "X"]
    assert (first["ts"], first["dur"], second["ts"]) == (12.5, 5.0, 10.0)


def test_processes_of_ranks_are_told_apart() -> None:
    other = {**FORWARD, "pid": "Spans"}
    merged = merged_traces({0: trace(0, NAME, FORWARD, other), 3: trace(0, FORWARD)})
    names = {
        e["pid"]: e["args"]["name"]
        for e in merged["traceEvents"]
        if e["name"] == "process_name"
    }
    assert list(names.values()) == ["rank 0: python", "rank 0: Spans", "rank 3: 7"]
    assert {e["pid"] for e in merged["traceEvents"]} == names.keys()


def test_flows_stay_in_their_rank() -> None:
    merged = merged_traces({0: trace(0, FLOW), 1: trace(0, FLOW)})
    assert [e["id"] for e in merged["traceEvents"] if e["ph"] == "s"] == ["0:3", "1:3"]


@pytest.mark.parametrize("bad", [[], {}, {"traceEvents": []}, {"traceEvents": 3}])
def test_what_is_no_trace(bad: Any) -> None:
    with pytest.raises(ValueError, match="rank 1 does not say when it began"):
        merged_traces({0: trace(0), 1: bad})


def save(folder: Path, name: str, content: Any, is_packed: bool = False) -> None:
    text = json.dumps(content).encode()
    (folder / name).write_bytes(gzip.compress(text) if is_packed else text)


def merge(folder: Path, *arguments: str) -> dict[str, Any]:
    output = str(folder / "out.json")
    assert main(["merge-traces", str(folder), "-o", output, *arguments]) == 0
    merged: dict[str, Any] = json.loads(Path(output).read_text())
    return merged


def ranks_in(merged: dict[str, Any]) -> set[int]:
    return {event["pid"] // 1_000_000 for event in merged["traceEvents"]}


def test_the_command_takes_the_last_step_that_all_ranks_have(tmp_path: Path) -> None:
    for step in (5, 10):
        for rank in (0, 1):
            is_packed = rank == 1
            name = f"timeline-{step}-rank{rank}.json" + ".gz" * is_packed
            event = {**FORWARD, "name": f"step {step}"}
            save(tmp_path, name, trace(0, event), is_packed)
    save(tmp_path, "timeline-15-rank0.json", trace(0, FORWARD))
    save(tmp_path, "timeline-10-rank1-2.json", trace(0, {**FORWARD, "name": "again"}))
    save(tmp_path, "timeline-10.json", trace(0, FORWARD))  # of no rank
    merged = merge(tmp_path)
    assert ranks_in(merged) == {0, 1}
    names = {event["name"] for event in merged["traceEvents"]}
    assert names == {"step 10", "again", "process_name"}
    assert ranks_in(merge(tmp_path, "--step", "15")) == {0}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "has no traces of ranks: timeline-STEP-rankN.json"),
        (["--step", "7"], "has no trace of step 7; there are 5"),
        (["--step", "5"], "timeline-5-rank0.json cannot be read"),
    ],
)
def test_what_cannot_be_merged_is_said(
    arguments: list[str],
    problem: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if arguments:
        (tmp_path / "timeline-5-rank0.json").write_text("{")
    assert main(["merge-traces", str(tmp_path), *arguments]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("torchprof_hooks: ")
    assert problem in printed
    assert main(["merge-traces", str(tmp_path / "nowhere")]) == 2


def traced(rank: int, folder: Path) -> None:
    net = nn.Linear(2, 2)
    hook = torchprof_hooks.ProfilerHook(save_steps=2, output_dir=str(folder))
    with torchprof_hooks.TrainingSession(hooks=[hook]) as session:
        for _ in range(4):
            session.run(lambda: net(torch.ones(1, 2)).sum().backward())


def test_real_traces_of_two_ranks(tmp_path: Path) -> None:
    run_processes(lambda rank: traced(rank, tmp_path), 2)
    merged = merge(tmp_path)
    assert ranks_in(merged) == {0, 1}
    for rank in (0, 1):
        events = of_rank(merged, rank)
        forward = [e for e in events if e["name"] == "Linear" and e["ph"] == "X"]
        assert forward
        names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
        assert names
        assert all(name.startswith(f"rank {rank}: ") for name in names)
