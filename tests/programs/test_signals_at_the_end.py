"""Signals that come while the report is made, or just before that."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.running import TORCH, TRAIN, Run, plain, profiled, written
from tests.thorough import THOROUGH
from torchprof_hooks import Profile

#: Has a signal come at a place in our report.
COMES = """
import atexit, os, signal, sys
from {module} import {owner}
signal.signal(signal.SIGINT, signal.default_int_handler)
original = {owner}.{name}
def signalled(*args, **kwargs):
    {owner}.{name} = original
    os.kill(os.getpid(), signal.{signal})
    return original(*args, **kwargs)
{owner}.{name} = signalled
"""
PLACES = [
    ("torchprof_hooks.program", "ending", "compilation_since"),
    ("torchprof_hooks.files.own_file", "OwnFile", "finish"),
    ("torchprof_hooks.program", "ending", "exit_report"),
    ("torchprof_hooks.program", "ending", "print_report"),
]
ENDINGS = [
    ("1 / 0", 1),
    ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
]


def comes(name: str, place: tuple[str, str, str]) -> str:
    module, owner, function = place
    return COMES.format(signal=name, module=module, owner=owner, name=function)


def saved(tmp_path: Path, program: str) -> Run:
    """The run of a program, which leaves one whole report and its file."""
    file = tmp_path / "profile.json"
    run = profiled("--save", str(file), written(tmp_path, program))
    assert run.reports == 1, run.err
    assert "torchprof_hooks: no report" not in run.err
    assert Profile.load(file).provenance[0].has_ended
    return run


#: Where one rank has failed, others fail, too, and are sent SIGTERM.
FAILED = ("SIGTERM", "1 / 0", -signal.SIGTERM)
PRESSED = ("SIGINT", "", 0)


@pytest.mark.parametrize(
    ("name", "ending", "code", "place"),
    [
        (*way, place)
        for way, place in zip([FAILED, PRESSED, FAILED, PRESSED], PLACES, strict=True)
    ],
)
def test_a_signal_takes_nothing_of_the_report(
    name: str, ending: str, code: int, place: tuple[str, str, str], tmp_path: Path
) -> None:
    run = saved(tmp_path, TRAIN + comes(name, place) + ending)
    assert (run.code, run.out) == (code, "trained\n")
    assert run.err.count("Traceback") == bool(ending)
    assert ending or not run.before_report


@pytest.mark.parametrize(("ending", "code"), ENDINGS)
def test_ctrl_c_in_the_report_leaves_the_exit_code(
    ending: str, code: int, tmp_path: Path
) -> None:
    run = saved(tmp_path, TRAIN + comes("SIGINT", PLACES[0]) + ending)
    assert run.code == code
    assert run.err.count("Traceback") == (ending == "1 / 0") + (code == -signal.SIGINT)


INTERRUPTED = """
import os, signal, torch
{before}
model = torch.nn.Linear(2, 2)
model(torch.ones(1, 2)).sum().backward()
{then}
signal.signal(signal.SIGINT, signal.default_int_handler)
os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize(
    ("before", "then", "code"),
    [
        ("", "", -signal.SIGINT),
        # In torch's exit function, Python forgets that it was Ctrl-C.
        pytest.param("import torch._dynamo", "", 1, marks=THOROUGH),
    ],
)
def test_ctrl_c_has_the_exit_code_that_it_has_without_us(
    before: str, then: str, code: int, tmp_path: Path
) -> None:
    path = written(tmp_path, INTERRUPTED.format(before=before, then=then))
    assert plain(path, loaded=TORCH).code == code
    run = profiled(path, loaded=TORCH)
    assert (run.code, run.reports) == (code, 1)
    path = written(tmp_path, PROFILED + INTERRUPTED.format(before=before, then=then))
    assert plain(path, loaded=TORCH).code == code


#: A module that is interrupted before it is whole: so is one that our report needs.
HALF = """
import os, signal, sys, time
from types import ModuleType
name = "torchprof_hooks.documents.report"
sys.modules[name] = ModuleType(name)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep({seconds})
del sys.modules[name]
"""


def test_sigterm_in_an_import_waits_for_that(tmp_path: Path) -> None:
    """As in torch's own, when the program has ended."""
    (tmp_path / "half.py").write_text(HALF.format(seconds=0.1))
    run = saved(tmp_path, TRAIN + "import atexit; atexit.register(__import__, 'half')")
    assert (run.code, run.before_report) == (-signal.SIGTERM, "")


def test_it_waits_for_no_program_that_is_imported(tmp_path: Path) -> None:
    main = "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\n"
    (tmp_path / "train.py").write_text(TRAIN + main + "time.sleep(600)\n")
    quickly = "from torchprof_hooks.measure import signals\nsignals.PATIENCE_S = 0.1\n"
    run = saved(tmp_path, "import torch\n" + quickly + "import train")
    assert (run.code, run.before_report) == (-signal.SIGTERM, "")


PROFILED = """
import torch
import torchprof_hooks

@torchprof_hooks.profiled
class Block(torch.nn.Linear): ...

Block(2, 2)(torch.ones(1, 2))
"""


def test_ctrl_c_in_the_report_of_a_class(tmp_path: Path) -> None:
    place = ("torchprof_hooks.reportable", "ProfileReports", "report")
    run = plain(written(tmp_path, PROFILED + comes("SIGINT", place)))
    assert (run.code, run.out) == (0, "")
    assert run.reports == 1
    assert run.err.startswith("Block\n")


RANKS = """
import torch, torchprof_hooks
with torchprof_hooks.profile(save={file!r}, ranks_report=True):
    torch.nn.Linear(2, 2)(torch.ones(1, 2))
"""


def test_ctrl_c_ends_waiting_for_other_ranks(tmp_path: Path) -> None:
    program = RANKS.format(file=str(tmp_path / "profile.json"))
    waiting = ("torchprof_hooks.documents", "ranks_at_exit", "_wait")
    path = written(tmp_path, program + comes("SIGINT", waiting))
    run = plain(path, RANK="0", WORLD_SIZE="2")
    told = f"torchprof_hooks: no files of other ranks in {tmp_path}."
    assert (run.code, run.out, run.err[: len(told)]) == (0, "", told)
    run = profiled(f"--save={tmp_path / 'own.json'}", path, RANK="0", WORLD_SIZE="2")
    assert (run.code, run.reports, run.err.count(told)) == (0, 1, 2)
