"""The command that compares runs: those in files, and those that it starts itself."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.build import profile_of, timed
from tests.compared_runs import Runs, in_turns
from tests.running import OWN_CLOCK
from torchprof_hooks import Profile, compare
from torchprof_hooks.files.profile_file import read_runs
from torchprof_hooks.program.cli import main

#: Compares runs in two folders, and returns what is printed.
Compared = Callable[..., str]

UNCHANGED = in_turns(0, 5)
SLOWER = in_turns(0, 5, {7: 1.5})


@pytest.fixture
def compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Compared:
    monkeypatch.chdir(tmp_path)

    def run(sides: tuple[Runs, Runs], options: str = "", code: int = 0) -> str:
        for side, runs in zip(("old", "new"), sides, strict=True):
            Path(side).mkdir(exist_ok=True)
            for number, each in enumerate(runs):
                each.save(f"{side}/{number}.json")
        assert main(["compare", "old", "new", *shlex.split(options)]) == code
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("options", ["", "--fail-above 5%"])
def test_a_planted_slowdown_fails(options: str, compared: Compared) -> None:
    printed = compared(SLOWER, options, code=1)
    assert re.search(r"Net\.7 +forward .* slower\n", printed)
    assert "Slower: 2 of 26 rows: most of all Net.7, backward, by " in printed


def test_a_single_run_is_a_file_too(compared: Compared, tmp_path: Path) -> None:
    compared(UNCHANGED)
    Path("one.json").write_bytes(Path("old/0.json").read_bytes())
    for path in tmp_path.glob("new/[1-9].json"):
        path.unlink()
    several = ["compare", "one.json", "new", "--fail-above"]
    assert [main([*several, share]) for share in ("60%", "0%")] == [0, 1]
    assert [run.steps for run in read_runs(Path("one.json"))] == [0]


def test_the_threshold_decides(compared: Compared) -> None:
    sides = in_turns(0, 7, {7: 1.15})
    for options, code in (
        ("--fail-above=8%", 1),
        ("--fail-above=25%", 0),
        ("--fail-above=0% --by=call", 1),
        ("--fail-above=3% --by=class", 1),
    ):
        compared(sides, options, code)


def test_other_programs_are_refused(
    compared: Compared, capsys: pytest.CaptureFixture[str]
) -> None:
    other = profile_of({("Other", "forward"): timed(9, 9)}, {"Other": "Other"})
    for new in ([other], [Profile()]):
        with pytest.raises(AssertionError, match="assert 2 == 0"):
            compared((UNCHANGED[0], new))
        said = capsys.readouterr().err
        assert "not profiles of one program" in said or "was called in new" in said


# Programs

PROGRAM = (
    OWN_CLOCK
    + """
import torch
from torch import nn

class Busy(nn.Module):
    def __init__(self, milliseconds):
        super().__init__()
        self.milliseconds = milliseconds
    def forward(self, x):
        busy(self.milliseconds)
        return x

model = nn.Sequential(*map(Busy, (2, float(sys.argv[1]), 2, 2, 2, 2)))
for _ in range(20):
    model(torch.ones(1))
print("done")
"""
)


def command(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "torchprof_hooks", "compare", "--run", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_two_programs_are_run_in_turns(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(PROGRAM)
    options = ("--format", "json", "-n", "2", "--keep", "kept")
    process = command(tmp_path, "busy.py 2", "busy.py 6", *options)
    printed, complaints = process.communicate(timeout=500)
    assert process.returncode == 1, complaints
    assert re.fullmatch(r"torchprof_hooks: 4 runs, in turns, .* minutes\n", complaints)
    report = json.loads(printed)
    assert report["numbers"]["in_turns"] is True
    slower = report["answers"]["slower"]
    assert slower["evidence"].startswith("most of all Sequential.1, forward, by ")
    [row] = [r for r in report["tables"]["rows"]["rows"] if r["name"] == "Sequential.1"]
    assert row["relative_change"] == pytest.approx(2, abs=0.01)
    kept = sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*.json"))
    assert kept == [f"kept/{side}/{n}.json" for side in ("new", "old") for n in (1, 2)]
    old, new = (read_runs(tmp_path / "kept" / side) for side in ("old", "new"))
    found = compare(old, new)
    assert found.in_turns
    began = [
        [run.provenance[0].started_ns for run in side]
        for side in (found.olds, found.news)
    ]
    # Each pair is begun by another program.
    assert [old < new for old, new in zip(*began, strict=True)] == [True, False]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print('hello'); 1 / 0", "exit code 1"),
        ("print('hello')", "left no profile (one that never imports torch"),
    ],
)
def test_a_program_that_fails_is_shown(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(text)
    process = command(tmp_path, "bad.py", "bad.py --with 'a b'")
    printed, complaints = process.communicate(timeout=200)
    assert process.returncode == 2
    assert printed == ""
    lines = complaints.splitlines()
    assert "hello" in lines
    assert not any("More: --full" in line for line in lines)  # of our report
    assert lines[-1].startswith("torchprof_hooks: the new program")
    assert said in lines[-1]
    assert lines[-1].endswith("bad.py --with 'a b'")


SLEEPING = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open("pids.part", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename("pids.part", "pids")
child.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "sleep.py").write_text(SLEEPING)
    process = command(tmp_path, "sleep.py", "sleep.py")
    pids = tmp_path / "pids"
    until = time.monotonic() + 200
    while not pids.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(number)
    _, complaints = process.communicate(timeout=200)
    assert process.returncode == 128 + number
    assert complaints == f"torchprof_hooks: stopped by {number.name}\n"
    for pid in map(int, pids.read_text().split()):
        until = time.monotonic() + 20
        while is_running(pid):
            assert time.monotonic() < until
            time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # a zombie has ended, whoever has not waited for it
