"""Whole programs, each in a process of its own."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.running import (
    NOTHING,
    OWN_CLOCK,
    TORCH,
    TRAIN,
    plain,
    profiled,
    reports_in,
    written,
)
from torchprof_hooks import Profile
from torchprof_hooks.documents.render.units import best_count_format
from torchprof_hooks.profiles.names import AFTER_LAST_NAME, OUTSIDE_NAME
from torchprof_hooks.program.cli import main

# Three ways in


def test_an_unmodified_script(script: Path) -> None:
    run = profiled(str(script), loaded=TORCH)
    assert (run.code, run.out, run.reports) == (0, "trained\n", 1)
    assert f"torchprof_hooks: {script}" in run.err
    assert "\n5 steps: first " in run.err
    assert "\nHottest module: Sequential" in run.err
    assert "\nClass\n" not in run.err
    assert len(run.err.splitlines()) <= 40


def test_all_tables_and_what_is_saved(script: Path, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    options = ("--save", str(path), "--peak-flops", "1e9", "--items-per-step", "32")
    run = profiled("--n-ops=1", *options, str(script))
    assert (run.code, run.out, run.reports) == (0, "trained\n", 1)
    assert f"Message: {script}\n" in run.err
    for section in ("Class", "Ops", "Apply"):
        assert f"\n{section}\n<" in run.err
    assert "(remaining " in run.err
    _, tree = run.err.split("\nModules of the whole run: ")
    for name in ("Sequential", "  0: Linear", "  1: ReLU", "  2: Linear"):
        assert f"\n{name} " in tree
    saved = Profile.load(path)
    rows = {row.name: row for row in saved.rows()}
    assert [rows[f"Sequential.{i}"].calls for i in range(3)] == [5, 5, 5]
    assert rows["Sequential.0"].phases["backward"].calls == 5
    functions = {row.name: row for row in saved.rows("function")}
    assert functions["linear"].calls == 10
    found = saved.loop.utilisation
    assert found is not None
    assert " of 1.00 GFLOP/s (given as peak_flops)\n" in run.err
    assert f"\nUtilisation: MFU {100 * found.mfu:.1f} %, HFU " in run.err
    speed = best_count_format(saved.loop.items_per_second)
    assert f"\nThroughput: {speed} items per second\n" in run.err


def test_an_evaluation_before_training_is_a_part_of_the_start(tmp_path: Path) -> None:
    saved, train = tmp_path / "profile.json", TRAIN.split("for ")
    sanity_check = "with torch.no_grad():\n    model(torch.ones(2, 4))\n"
    program = train[0] + 2 * sanity_check + "for " + train[1]

    run = profiled("--save", str(saved), "-c", program)

    assert (run.code, run.out, run.reports) == (0, "trained\n", 1)
    found = Profile.load(saved)
    times = found.start_up.step_times
    assert (times.first_steps, times.evaluations) == (1, 2)
    assert found.program is not None
    assert (found.steps, found.step_times.evaluations) == (5, 2)


@pytest.mark.parametrize(
    ("program", "flags", "reports"),
    [
        ("import torchprof_hooks" + TRAIN, "profile=True", 1),
        ("import torchprof_hooks as t; t.enable(profile=False)" + TRAIN, "", 0),
    ],
    ids=["variable", "call: False"],
)
def test_a_program_that_imports_the_package(
    program: str, flags: str, reports: int, tmp_path: Path
) -> None:
    run = plain(written(tmp_path, program), flags=flags)
    assert (run.code, run.out, run.reports) == (0, "trained\n", reports)
    assert bool(run.err) == bool(reports)


def test_a_program_that_calls_no_module(tmp_path: Path) -> None:
    path = written(tmp_path, TRAIN + "import torchprof_hooks")
    run = plain(path, flags="profile=True")
    assert (run.code, run.err) == (0, NOTHING)


def test_all_ways_at_once_are_one_report(tmp_path: Path) -> None:
    program = "import torchprof_hooks as t; t.enable()" + TRAIN + "t.enable()"
    run = profiled(written(tmp_path, program), flags="profile=True")
    assert (run.code, run.reports) == (0, 1)


# As it would run alone

LOOK_AROUND = """
import json, os, sys
import torch
print(json.dumps([
    sys.argv, sys.path, __name__, __file__, sys.stdin.read(), sys.flags.dev_mode,
    os.environ.get("PYTHONPATH"), sorted(os.environ), os.getcwd(),
    sys.modules["__main__"].__file__, sys.modules["__main__"].__spec__ is None,
    [type(finder).__name__ for finder in sys.meta_path],
]))
"""


def test_it_finds_everything_as_without_us(tmp_path: Path) -> None:
    arguments = [written(tmp_path, LOOK_AROUND), "--n-ops", "-m", "x y", ""]
    options: dict[str, Any] = {"PYTHONPATH": "somewhere:else"}
    alone = plain(*arguments, loaded=TORCH, **options)
    run = profiled(*arguments, loaded=TORCH, **options)
    assert alone.code == 0
    assert (run.code, run.out) == (0, alone.out)


def test_a_module(tmp_path: Path) -> None:
    written(tmp_path, LOOK_AROUND.replace(" is None", ".name"))
    options: dict[str, Any] = {"PYTHONPATH": str(tmp_path)}
    alone = plain("-m", "program", "--n-ops", "3", **options)
    run = profiled("-m", "program", "--n-ops", "3", **options)
    assert alone.code == 0
    assert (run.code, run.out) == (0, alone.out)
    assert run.err.startswith(NOTHING.rstrip())


def test_a_sitecustomize_of_the_users_own(tmp_path: Path, script: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('customized')")
    run = profiled(str(script), loaded=TORCH, PYTHONPATH=str(tmp_path))
    # Once for the interpreter that starts the program, and once for the program.
    assert (run.out, run.reports) == ("customized\n" * 2 + "trained\n", 1)


def test_what_cannot_be_run() -> None:
    alone, run = (start("missing.py", fresh=True) for start in (plain, profiled))
    assert (run.code, run.out, run.err) == (alone.code, alone.out, alone.err)
    assert run.code != 0


# Endings


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("import sys; sys.exit(3)", 3),
        ("1 / 0", 1),
        ("import sys; sys.exit('message')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_every_ending_has_its_exit_code_its_traceback_and_a_report(
    ending: str, code: int, tmp_path: Path
) -> None:
    # Alone, without the training: that takes its time.
    quick = "\n" * (TRAIN.count("\n") - 1) + "print('trained')\n"
    alone = plain(written(tmp_path, quick + ending))
    run = profiled(written(tmp_path, TRAIN + ending))
    assert (alone.code, run.code, run.out) == (code, code, alone.out)
    assert run.before_report == alone.err
    assert run.reports == 1


def test_ctrl_c_from_outside(tmp_path: Path) -> None:
    wait = """
import os, signal, subprocess, time
signal.signal(signal.SIGINT, signal.default_int_handler)
subprocess.Popen(["sh", "-c", f"kill -INT {os.getpid()}"])
time.sleep(60)
"""
    run = profiled(written(tmp_path, TRAIN + wait))
    assert (run.code, run.reports) == (-signal.SIGINT, 1)
    assert "KeyboardInterrupt" in run.err


LEFT = (
    OWN_CLOCK
    + """
import atexit
import torch

class Left(torch.nn.Module):
    def forward(self, x):
        busy(2)
        raise KeyboardInterrupt

atexit.register(busy, 1000)
Left()(torch.ones(1))
"""
)


def test_what_comes_after_an_interrupt_is_not_the_time_of_the_call_it_left(
    tmp_path: Path,
) -> None:
    saved = tmp_path / "profile.json"
    profiled("--save", str(saved), written(tmp_path, LEFT))
    times = Profile.load(saved).phase_times_ns()
    assert times.get("forward", 0) < 100e6
    assert times["outside"] > 1000e6


RAISES = (
    OWN_CLOCK
    + """
import atexit
import torch
from torch import nn

class Raises(nn.Module):
    calls = 0
    def forward(self, x):
        busy(2)
        self.calls += 1
        if self.calls == 10:
            raise ValueError("planted")
        return x

atexit.register(busy, 1000)
model = nn.Sequential(nn.Linear(1, 1), Raises())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    model(torch.ones(1)).sum().backward()
    optimizer.step()
"""
)


def test_the_exception_that_ends_a_program(tmp_path: Path) -> None:
    saved = tmp_path / "profile.json"
    run = profiled("--save", str(saved), written(tmp_path, RAISES), fresh=True)
    assert run.code == 1
    first_lines = run.err.split("torchprof_hooks: ")[1].split("9 steps")[0]
    assert "; ended by ValueError in Sequential.1\n" in first_lines
    rows = {row.name: row for row in Profile.load(saved).loop.rows()}
    assert rows[AFTER_LAST_NAME].self_ns > 1000e6
    assert rows[OUTSIDE_NAME].self_ns < 100e6
    assert "Bottleneck: outside modules" not in run.err


def test_an_exception_that_a_test_runner_reports(tmp_path: Path) -> None:
    """It does not end the program, and is in the same place as one that does."""
    caught = """
import sys
def runner():
    try:
        model(torch.ones(1, 5))
    except Exception as error:
        sys.last_value = error
runner()
"""
    run = profiled(written(tmp_path, TRAIN + caught), fresh=True)
    assert (run.reports, "ended by RuntimeError" in run.err) == (1, False)


def test_an_end_that_nothing_survives(tmp_path: Path) -> None:
    run = profiled(written(tmp_path, TRAIN + "import os; os._exit(5)"))
    assert (run.code, run.reports) == (5, 0)


CHILDREN = """
import multiprocessing, os, sys

def work():
    import torch
    torch.nn.Linear(2, 2)(torch.ones(2))

if __name__ == "__main__":
    %s
    for method in ("fork", "spawn"):
        child = multiprocessing.get_context(method).Process(target=work)
        child.start()
        child.join()
        assert child.exitcode == 0
    if not os.fork():
        sys.exit()
    os.wait()
"""


def test_children_print_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, CHILDREN % "work()")
    assert profiled(path).reports == 1


# Where it goes


def test_files_as_destinations(script: Path, tmp_path: Path) -> None:
    report, page = tmp_path / "report.txt", tmp_path / "page.html"
    run = profiled(f"--destination={report}", f"--html={page}", str(script))
    assert (run.err, run.reports) == ("", 0)
    assert reports_in(report.read_text()) == 1
    assert "Sequential" in page.read_text()


def test_a_rank_has_a_file_of_its_own(script: Path, tmp_path: Path) -> None:
    save = f"--save={tmp_path / 'profile.json'}"
    run = profiled(save, str(script), RANK="3", WORLD_SIZE="8")
    assert (run.out, run.err) == ("trained\n", "")
    [path] = tmp_path.glob("*.json")
    assert path.name == "profile-rank3.json"
    assert Profile.load(path).steps > 0


@pytest.mark.parametrize("options", [(), ("--ranks-report=off",)], ids=["one", "all"])
def test_of_several_ranks_one_prints(script: Path, options: tuple[str, ...]) -> None:
    run = profiled(*options, str(script), RANK="3", WORLD_SIZE="8")
    assert run.reports == len(options)
    assert ("rank 3 of 8 is measured, too: --save FILE" in run.err) == (not options)


@pytest.mark.parametrize(
    ("arguments", "typed", "seen"),
    [
        (("-c", "{code}", "--n-ops", "x"), "", "['-c', '--n-ops', 'x']\n"),
        (("--n-ops", "3", "-", "x"), "{code}", "['-', 'x']\n"),
    ],
    ids=["code", "standard input"],
)
def test_code_and_standard_input_are_run_too(
    arguments: tuple[str, ...], typed: str, seen: str
) -> None:
    code = "import sys, torch; torch.nn.Linear(3, 3); print(sys.argv)"
    given = (argument.format(code=code) for argument in arguments)
    run = profiled(*given, typed=typed.format(code=code))
    assert (run.code, run.out) == (0, seen)
    assert reports_in(run.err) == 1


def test_what_cannot_be_written_does_not_cost_the_report(tmp_path: Path) -> None:
    """The folder is there when the program begins, which removes it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    program = f"import os; os.rmdir({str(folder)!r})\n" + TRAIN
    options = (f"--destination={folder / 'report'}", f"--save={folder / 'profile'}")
    run = profiled(*options, written(tmp_path, program))
    assert (run.code, run.out, run.reports) == (0, "trained\n", 1)
    assert f"torchprof_hooks: no file for the report: {folder / 'report'}" in run.err
    assert f"torchprof_hooks: {folder / 'profile'} is not saved: " in run.err


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--n-ops", "0", "x.py"], "--n-ops must be a whole number"),
        (["--nops", "3", "x.py"], "--nops"),
        ([], "usage:"),
        (["show", "nowhere.json"], "nowhere.json"),
        (["--steps", "0", "x.py"], "--steps must be a whole number, 1 or more, not"),
        (["--every", "9", "x.py"], "--every must be given with steps, which says"),
        (
            ["--steps=9", "--every=9", "x.py"],
            "--every must be above steps (9), not 9\n",
        ),
    ],
)
def test_mistakes_end_with_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(arguments)
    except SystemExit as ending:
        code = ending.code
    assert code == 2
    assert complaint in capsys.readouterr().err


def test_an_option_behind_the_script_is_told_of(tmp_path: Path) -> None:
    """Where the program takes none, it ends before it calls anything."""
    parses = "import argparse, torch\nargparse.ArgumentParser().parse_args()\n"
    run = profiled(written(tmp_path, parses + TRAIN), "--memory")
    assert (run.code, run.out) == (2, "")
    hint = "; --memory: for us, write this before the script\n"
    assert run.err.endswith(NOTHING.removesuffix("\n") + hint)
    assert profiled(written(tmp_path, "import torch"), "--mine").err == NOTHING


def test_a_malformed_variable_ends_the_program(script: Path, tmp_path: Path) -> None:
    path = written(tmp_path, "import torchprof_hooks" + TRAIN)
    run = plain(path, flags="profil=True")
    assert (run.code, run.out) == (2, "")
    assert run.err == (
        "TORCHPROF_HOOKS_FLAGS: there is no flag 'profil'; did you mean profile?\n"
    )
