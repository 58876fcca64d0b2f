"""`@profiled`: the report at exit, in a process of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from torch import nn

import torchprof_hooks
from tests.programs import python

SCRIPT = """
import os, sys, threading
import torch
from torch import nn
import torchprof_hooks

@torchprof_hooks.profiled{options}
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
model = Model()
for _ in range(3):
    model(torch.ones(256, 256)).sum().backward()
{more}
"""


def run(more: str = "", options: str = "") -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(more=more, options=options)
    return python("-W", "error", "-c", script)


def table(text: str) -> dict[str, list[str]]:
    """Lines of the report by their first word."""
    return {line.split()[0]: line.split() for line in text.splitlines() if line}


def test_report_of_the_class_at_exit() -> None:
    result = run()
    assert (result.returncode, result.stdout) == (0, "")
    rows = table(result.stderr)
    assert rows["Block"][1] == "6"  # two blocks, three steps
    assert rows["inner:"][1:3] == ["Linear", "6"]
    assert "embed:" not in rows
    assert "Model" not in rows


def test_report_comes_after_an_exception_too() -> None:
    result = run("raise ValueError('planted')")
    assert result.returncode == 1
    assert "ValueError: planted" in result.stderr
    assert table(result.stderr)["Block"][1] == "6"


def test_report_comes_after_exit_with_a_code() -> None:
    result = run("sys.exit(7)")
    assert result.returncode == 7
    assert table(result.stderr)["Block"][1] == "6"


def test_report_goes_to_a_file_of_choice() -> None:
    result = run(options="(file=sys.stdout, unit='us')")
    assert result.stderr == ""
    assert "us" in table(result.stdout)["Block"][2]


def test_a_class_decorated_again_reports_once_as_it_was_asked_to_last() -> None:
    result = run("torchprof_hooks.profiled(file=sys.stdout, unit='us')(Block)")
    assert result.stderr == ""
    assert "us" in table(result.stdout)["Block"][2]
    assert result.stdout.count("Hottest module") <= 1


def test_threads_copies_and_subclasses_are_measured() -> None:
    result = run(
        """
import copy
class Special(Block): ...
thread = threading.Thread(target=lambda: copy.deepcopy(model)(torch.ones(2, 256)))
thread.start(); thread.join()
Special()(torch.ones(2, 256))
""",
        options='(unit="ms")',
    )
    assert table(result.stderr)["Block"][1] == "8"
    assert table(result.stderr)["Special"][1] == "1"


MANY_THREADS = """
from torchprof_hooks.hooks import ended_threads
from torchprof_hooks.capture.attach.attachments import Attachments
from torchprof_hooks.capture.attach.engine import engine_patch

ended_threads.ENDED_KEPT = {kept}
attach, attached = Attachments.attach, []

def counting(self, *given):
    attached.append(1)
    attach(self, *given)

Attachments.attach = counting

def work():
    model(torch.ones(256, 256)).sum().backward()
    users.append(len(engine_patch.users))

users = []
for _ in range(50):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
kept = len(Block.__profiler__._threads._threads)
rows = [row for row in Block.__profiler__.profile.rows() if row.name == "Block"]
phases = {{name: phase.calls for name, phase in rows[0].phases.items()}}
print(len(attached), max(users), kept, phases)
"""


@pytest.mark.parametrize("kept", [1000, 10])
def test_threads_that_have_ended_cost_nothing_in_later_ones(kept: int) -> None:
    result = run(MANY_THREADS.format(kept=kept))
    calls = 2 * (3 + 50)  # of two blocks
    phases = {"forward": calls, "backward": calls, "recompute": 0}
    # The tracker of the main thread, and that of the thread that runs.
    trackers = 1 + min(50, kept)
    assert result.stdout.startswith(f"50 2 {trackers} {phases}"), result.stderr
    assert table(result.stderr)["Block"][1] == str(calls)


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
def test_forked_child_does_not_report_for_its_parent() -> None:
    result = run("if os.fork() == 0: sys.exit(0)\nos.wait()")
    assert result.stderr.count("torchprof_hooks:") == 1


SPAWNING = """
import multiprocessing, torch
from torch import nn
import torchprof_hooks

@torchprof_hooks.profiled
class Block(nn.Linear): ...

def load(): print("loaded", flush=True)
def train(): Block(2, 2)(torch.ones(2))

if __name__ == "__main__":
    for work in (load, train):
        child = multiprocessing.get_context("spawn").Process(target=work)
        child.start()
        child.join()
"""


@pytest.mark.slow
def test_a_spawned_process_reports_if_it_has_called_any(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SPAWNING)
    result = python(str(tmp_path / "program.py"))
    assert (result.returncode, result.stdout) == (0, "loaded\n"), result.stderr
    # That of the child that trains, and that of the program, which has called none.
    assert result.stderr.count("torchprof_hooks: ") == 2
    assert result.stderr.count("No module was called") == 1


def test_class_that_was_never_used_says_so(tmp_path: Path) -> None:
    result = run("import torchprof_hooks as t\n@t.profiled\nclass Idle(nn.Module): ...")
    assert "Idle\ntorchprof_hooks: " in result.stderr
    assert "No module was called" in result.stderr


def test_profile_can_be_read_while_running() -> None:
    result = run("print(Block.__profiler__.profile.rows()[0].name)")
    assert result.stdout in ("Block\n", "(outside modules)\n", "(profiler)\n")


@pytest.mark.parametrize("wrong", [int, nn.Linear(1, 1), "Linear", len])
def test_only_module_classes_can_be_decorated(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"derived from nn\.Module"):
        torchprof_hooks.profiled(wrong)  # type: ignore[call-overload]


def test_unknown_unit_is_refused_when_decorating() -> None:
    with pytest.raises(ValueError, match="auto_foreach"):
        torchprof_hooks.profiled(unit="hours")(nn.Linear)  # type: ignore[call-overload]
