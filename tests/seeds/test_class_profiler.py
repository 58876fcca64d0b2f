"""`@profiled`: the report at exit, in a process of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.running import python

SCRIPT = """
import copy, os, sys, threading
import torch
from torch import nn
import torchprof_hooks

@torchprof_hooks.profiled
class Block(nn.Module):
    '''A block.'''
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(256, 256)  # works enough for a line of its own
    def forward(self, x):
        return x + self.inner(x)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(256, 256)
        self.blocks = nn.Sequential(Block(), Block())
    def forward(self, x):
        return self.blocks(self.embed(x))

assert Block.__name__ == "Block" and Block.__doc__ == "A block."
model, X = Model(), torch.ones(256, 256)
for _ in range(3):
    model(X).sum().backward()
"""


def run(more: str) -> subprocess.CompletedProcess[str]:
    return python("-W", "error", "-c", SCRIPT + more)


def table(text: str) -> dict[str, list[str]]:
    """Lines of the report by their first word."""
    return {line.split()[0]: line.split() for line in text.splitlines() if line}


def test_report_of_the_class_at_exit() -> None:
    result = run("sys.exit(7)")
    assert (result.returncode, result.stdout) == (7, "")
    rows = table(result.stderr)
    assert rows["Block"][1] == "4"  # two blocks, two steps after the first
    assert rows["inner:"][1:3] == ["Linear", "4"]
    assert "embed:" not in rows
    assert "Model" not in rows


EVERYTHING_ELSE = """
print(Block.__profiler__.profile.rows()[0].name)

class Special(Block): ...
thread = threading.Thread(target=lambda: copy.deepcopy(model)(X))
thread.start(); thread.join()
Special()(X)

@torchprof_hooks.profiled(file=sys.stderr)
class Idle(nn.Module): ...

torchprof_hooks.profiled(file=sys.stdout, unit="us")(Block)  # once more
sys.stdout.flush()
if hasattr(os, "fork"):
    if os.fork() == 0: sys.exit(0)
    os.wait()
"""


def test_what_programs_do_with_classes() -> None:
    result = run(EVERYTHING_ELSE)
    first, _, report = result.stdout.partition("\n")
    # Read while it runs.
    assert first in ("Block", "(outside modules)", "(profiler overhead)")
    rows = table(report)
    # Of eight, those of threads and of copies among them: two began a run.
    assert rows["Block"][1] == "6"
    assert rows["Special"][1] == "1"
    # Once, as it was asked to last, and not by the forked child.
    assert "us" in rows["Block"][2]
    assert report.count("Hottest module") <= 1
    assert report.count("torchprof_hooks:") == 1
    # A class that was never used says so.
    assert result.stderr.startswith("Idle\ntorchprof_hooks: ")
    assert "No module was called" in result.stderr


SPAWNING = """
import multiprocessing, torch
from torch import nn
import torchprof_hooks

@torchprof_hooks.profiled
class Block(nn.Linear): ...

def load(): print("loaded", flush=True)
def train(): Block(2, 2)(torch.ones(2))

if __name__ == "__main__":
    start = multiprocessing.get_context("spawn").Process
    children = [start(target=work) for work in (load, train)]
    for child in children:
        child.start()
    for child in children:
        child.join()
"""


@pytest.mark.thorough
def test_a_spawned_process_reports_if_it_has_called_any(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SPAWNING)
    result = python(str(tmp_path / "program.py"))
    assert (result.returncode, result.stdout) == (0, "loaded\n"), result.stderr
    # That of the child that trains, and that of the program, which has called none.
    assert result.stderr.count("torchprof_hooks: ") == 2
    assert result.stderr.count("No module was called") == 1
