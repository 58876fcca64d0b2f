"""Ranks that a program starts by itself are measured where that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import plain, profiled, written
from torchprof_hooks import Profile, load_ranks

SCRIPTS = Path(__file__).parent / "scripts"


OF_RANKS = {"profile-rank0.json", "profile-rank1.json"}


def save_into(folder: Path) -> tuple[str, ...]:
    return "--save", str(folder / "profile.json")


def saved_in(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.json")}


def said_itself(out: str) -> list[str]:
    """The lines of its own among those that a program prints: gloo of some versions
    prints, too, in both ranks at once."""
    return [line for line in out.splitlines() if line in ("other", "trained")]


def test_ranks_that_a_program_spawns(tmp_path: Path) -> None:
    script = str(SCRIPTS / "spawned_ranks.py")
    run = profiled("--children", *save_into(tmp_path), script, "--other")
    assert (run.code, said_itself(run.out)) == (0, ["other", "trained"]), run.err
    assert run.reports == 1  # of rank 0, which tells of both before it
    assert "2 of 2 ranks of" in run.before_report
    assert "torchprof_hooks: no module was called\n" in run.err  # of what spawns them
    assert run.err.count("2 of 2 ranks of") == 1
    assert saved_in(tmp_path) == OF_RANKS
    ranks = load_ranks(tmp_path)
    assert [rank.provenance.world_size for rank in ranks.ranks] == [2, 2]
    for path in tmp_path.iterdir():
        rows = {row.name: row for row in Profile.load(path).rows()}
        assert rows["Linear"].calls == 6


FORKS = """
import multiprocessing, threading, time
import torch
from torchprof_hooks.kernel.optimizer_hooks import optimizer_hooks

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def train(steps):
    for _ in range(steps):
        time.sleep(0.002)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

def evaluate(calls):
    for _ in range(calls):
        time.sleep(0.002)
        with torch.no_grad():
            model(torch.ones(2, 4))

def in_child(work):
    work(150)
    print(len(optimizer_hooks.users), [each.name for each in threading.enumerate()])
    time.sleep(0.2)  # whoever writes has time for it

train(3)
for work in (train, evaluate):
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(work,))
    child.start()
    child.join()
    print(child.exitcode)
train(2)
"""


def test_forks_write_nothing_and_are_soon_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save = ("--save", str(path), "--flush-secs=0.05")
    run = profiled(*save, written(tmp_path, FORKS))
    in_child = "0 ['MainThread']"
    assert run.out.splitlines() == [in_child, "0"] * 2, run.err
    assert (run.code, run.reports, run.before_report) == (0, 1, "")
    assert list(tmp_path.glob("*.json")) == [path]
    times = Profile.load(path).step_times
    assert (times.steps, times.evaluations) == (5, 0)


def test_one_that_is_given_a_part_of_the_environment_runs_as_without_us(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('customized')")
    (tmp_path / "child.py").write_text(
        "import os, torch; print(os.environ['PYTHONPATH'], torch.ones(1).item())"
    )
    start = """
import os, subprocess, sys
kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH")}
child = os.path.join(os.environ["PYTHONPATH"].split(os.pathsep)[-1], "child.py")
subprocess.run([sys.executable, child], env=kept, check=True)
"""
    path = written(tmp_path, "import torch\n" + start)
    run = profiled("--children", path, PYTHONPATH=str(tmp_path))
    assert run.code == 0, run.err
    assert (
        f"customized\n{tmp_path} 1.0\n" in run.out
    )  # and the parent's own, at its end
    assert "Error in sitecustomize" not in run.err


@pytest.mark.thorough
def test_ranks_of_a_program_that_begins_to_measure_itself(tmp_path: Path) -> None:
    save = str(tmp_path / "profile.json")
    main, script = '__name__ == "__main__":\n', SCRIPTS / "spawned_ranks.py"
    begin = "    import torchprof_hooks\n"
    begin += f"    torchprof_hooks.enable(children=True, save={save!r})\n"
    program = written(tmp_path, script.read_text().replace(main, main + begin))
    run = plain(program)
    assert (run.code, said_itself(run.out)) == (0, ["trained"]), run.err
    assert run.err.count("2 of 2 ranks of") == 1
    assert saved_in(tmp_path) == OF_RANKS


@pytest.mark.thorough
def test_they_are_left_alone_where_it_is_not(tmp_path: Path) -> None:
    script = str(SCRIPTS / "spawned_ranks.py")
    run = profiled(*save_into(tmp_path), script, "--other")
    assert (run.code, said_itself(run.out)) == (0, ["other", "trained"]), run.err
    assert run.reports == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_ranks_of_lightning(tmp_path: Path) -> None:
    command = (str(SCRIPTS / "lightning_ranks.py"), str(tmp_path / "logs"))
    run = profiled("--children", *save_into(tmp_path), *command)
    assert run.code == 0, run.err
    assert saved_in(tmp_path) == OF_RANKS
    ranks = load_ranks(tmp_path)
    assert [rank.provenance.local_rank for rank in ranks.ranks] == [0, 1]
    assert [rank.steps for rank in ranks.ranks] == [4, 4]
    assert "(waiting for gradients)" in {row.name for row in ranks.rows()}
    assert "2 of 2 ranks of" in run.err


LAUNCHES = """
import subprocess, sys
import torch
torch.ones(2).add(1)  # as some imports do
torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
subprocess.run([sys.executable, *torchrun, sys.argv[1]], check=True)
"""


@pytest.mark.thorough
def test_ranks_of_a_launcher_that_a_program_starts(tmp_path: Path) -> None:
    """The ranks are children of a child; and the program has no file, which would be
    newer than theirs."""
    path, script = written(tmp_path, LAUNCHES), str(SCRIPTS / "two_ranks.py")
    run = profiled("--children", *save_into(tmp_path), path, script)
    assert run.code == 0, run.err
    assert "torchprof_hooks: no module was called\n" in run.err  # in the program
    assert saved_in(tmp_path) == OF_RANKS
    assert [rank.steps for rank in load_ranks(tmp_path).ranks] == [6, 6]
