"""Programs that import torch, or train, in another thread than the main one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.running import TRAIN, Run, plain, profiled, written

IN_A_THREAD = f"""
import threading
def run_in(name, work):
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()
def train():
    exec(TRAIN)
TRAIN = {TRAIN!r}
"""

IMPORT = "def load():\n    import torch\n"


def steps(run: Run) -> int:
    found = re.search(r"\b(\d+) steps", run.err)
    return int(found[1]) if found else 0


@pytest.mark.parametrize(
    ("program", "thread"),
    [
        (IMPORT + "run_in('loader', load); train()", "MainThread"),
        (IMPORT + "run_in('loader', load); run_in('trainer', train)", "trainer"),
    ],
    ids=["the import", "each in its own"],
)
def test_the_thread_that_calls_the_model_is_measured(
    program: str, thread: str, tmp_path: Path
) -> None:
    path = written(tmp_path, IN_A_THREAD + program)
    run = profiled("--tables", path)
    assert (run.code, run.out, run.reports) == (0, "trained\n", 1)
    assert f"Message: {path}, in thread {thread}\n" in run.err
    assert steps(run) == 5
    assert "Function profiling: " not in run.err
    assert "Time in 5 calls to Sequential: " in run.err  # the first is one of them


TRANSFORM = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(2, 2))
run_in("preparing", lambda: torch.nn.Flatten()(torch.ones(2, 2)))
train()
run_in("serving", lambda: model(torch.ones(2, 2)))
"""


def test_threads_beside_the_main_one_do_not_count(tmp_path: Path) -> None:
    path = written(tmp_path, IN_A_THREAD + TRANSFORM)
    run = profiled("--tables", path)
    assert (run.code, run.out, run.reports) == (0, "trained\n", 1)
    assert f"Message: {path}\n" in run.err
    assert steps(run) == 5


def test_enabled_in_a_thread(tmp_path: Path) -> None:
    enabled = """
def both():
    import torchprof_hooks as t; t.enable(tables=True)
    train()
run_in("trainer", both)
"""
    run = plain(written(tmp_path, IN_A_THREAD + enabled))
    assert (run.code, run.out, run.reports) == (0, "trained\n", 1)
    assert steps(run) == 5
