"""The plugin in sessions of pytest, whose tests look at a clock that planted work moves
alone, in the processes that they start as well."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.programs import TORCH, python
from tests.thorough import THOROUGH
from torchprof_hooks.integrations.gate.baseline import Baseline, load

ROOT: Final = Path(__file__).parent.parent.parent.parent
PLUGIN: Final = "torchprof_hooks.integrations.gate.plugin"

#: The clock is there before anything reads it.
CONFTEST: Final = """
import time

now_ns = [1_000_000_000]
time.perf_counter_ns = lambda: now_ns[0]

def burn(milliseconds):
    now_ns[0] += round(milliseconds * 1e6)

from torchprof_hooks.integrations.gate import measuring

measuring.Matrices.forward = lambda self: burn(40)
measuring.Vectors.forward = lambda self: burn(20)
"""
TEST: Final = """
import os
import torch
from torch import nn
from conftest import burn

class Busy(nn.Linear):
    def __init__(self, name):
        super().__init__(2, 2)
        self.name = name
    def forward(self, x):
        burn(float(os.environ.get(self.name, 30)))
        return super().forward(x)

def test_step(torchprof):
    model = nn.Sequential(Busy("ONE"), Busy("TWO"))
    torchprof.check(lambda: model(torch.ones(1, 2)).sum().backward())
"""

#: The checked test asks for a folder for temporary files, too, which pytest makes anew.
WRITES_BEFORE: Final = """
def test_writes(tmp_path):
    (tmp_path / "written").write_text("before the check")
""" + TEST.replace("(torchprof)", "(torchprof, tmp_path)")

#: A session in a folder, with these options, and these variables besides.
Session = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def session(tmp_path: Path) -> Session:
    installed(tmp_path)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_net.py").write_text(TEST)
    # Each run starts a Python, which takes seconds.
    (tmp_path / "pytest.ini").write_text("[pytest]\ntorchprof_runs = 1\n")

    def run(*options: str, **more: str) -> subprocess.CompletedProcess[str]:
        before = os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join([str(tmp_path), str(ROOT), before])
        environment = {**os.environ, "PYTHONPATH": path, **more}
        environment.pop("PYTEST_ADDOPTS", None)
        arguments = ("-m", "pytest", "-p", "no:cacheprovider", *options)
        return python(
            *arguments, environment=environment, folder=tmp_path, loaded=TORCH
        )

    return run


def baselines(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.json"))


@pytest.mark.slow
def test_a_baseline_is_written_and_what_is_slower_than_it_fails(
    session: Session, tmp_path: Path
) -> None:
    first = session()
    assert first.returncode == 0, first.stdout
    (path,) = baselines(tmp_path / ".torchprof")
    assert path.name.startswith("test_net.test_step.")
    assert f"baseline written: .torchprof/{path.name}" in first.stdout
    (run,) = load(Baseline, path).runs
    assert (run.arithmetic_ns, run.memory_ns) == (40_000_000, 20_000_000)
    assert run.rows["Sequential.0"].phases["forward"] == 30_000_000

    written = path.read_text()
    same = session("test_net.py", ONE="30.5")
    assert same.returncode == 0, same.stdout
    assert "torchprof" not in same.stdout.partition("collected")[2]

    slower = session("-k", "step", ONE="45")  # by more than chance with one run each
    assert slower.returncode == 1
    assert "by the mean of 1 process\n" in slower.stdout
    words = " ".join(slower.stdout.split())
    assert re.search(r"Sequential.0 30.00ms 45.00ms \+50.0 \+\d+.\d slower", words)
    assert "Traceback" not in slower.stdout
    assert path.read_text() == written


@pytest.mark.thorough
def test_an_update_measures_anew(session: Session, tmp_path: Path) -> None:
    folder = {"torchprof_dir": "kept"}
    options = [f"-o{name}={value}" for name, value in folder.items()]
    assert session(*options).returncode == 0
    updated = session("--torchprof-update", "--torchprof-strict", *options, TWO="60")
    assert updated.returncode == 0, updated.stdout
    (path,) = baselines(tmp_path / "kept")
    (run,) = load(Baseline, path).runs
    assert run.rows["Sequential.1"].phases["forward"] == 60_000_000


@pytest.mark.slow
def test_where_there_has_to_be_a_baseline_its_absence_fails(
    session: Session, tmp_path: Path
) -> None:
    done = session("--torchprof-strict")
    assert done.returncode == 1
    assert "there is no baseline of this machine" in done.stdout
    assert not baselines(tmp_path)


@pytest.mark.thorough
def test_what_is_chance_in_one_process_does_not_fail(
    session: Session, tmp_path: Path
) -> None:
    assert session().returncode == 0
    in_this_process = '"TORCHPROF_HOOKS_GATE_FILE" not in os.environ'
    chance = TEST.replace(
        "os.environ.get(self.name, 30)", f"30 + 30 * ({in_this_process})"
    )
    (tmp_path / "test_net.py").write_text(chance)
    done = session()
    assert done.returncode == 0, done.stdout


@pytest.mark.thorough
def test_a_damaged_baseline_fails_and_says_what_to_do(
    session: Session, tmp_path: Path
) -> None:
    assert session().returncode == 0
    (path,) = baselines(tmp_path)
    path.write_text("{")
    done = session()
    assert done.returncode == 1
    assert "is not a whole JSON file" in done.stdout
    assert "pytest --torchprof-update measures it anew" in done.stdout


TWO_CHECKS: Final = (
    TEST
    + """
    torchprof.check(lambda: model(torch.ones(1, 2)), name="no gradient")

def test_names(torchprof):
    torchprof.check(lambda: burn(50))
    try:
        torchprof.check(lambda: burn(50))
    except ValueError as error:
        assert "give each a name" in str(error)
    else:
        raise AssertionError
"""
)


@pytest.mark.thorough
def test_workers_of_xdist_write_a_file_for_each_check(
    session: Session, tmp_path: Path
) -> None:
    pytest.importorskip("xdist", reason="of the extra `test`")
    (tmp_path / "test_net.py").write_text(TWO_CHECKS)
    done = session("-n", "2", "--dist", "loadgroup", "test_net.py")
    assert done.returncode == 0, done.stdout
    names = [path.name.rsplit(".", 2)[0] for path in baselines(tmp_path)]
    told = [
        "test_net.test_names",
        "test_net.test_step",
        "test_net.test_step.no_gradient",
    ]
    assert names == told
    for path in baselines(tmp_path):
        assert f"baseline written: .torchprof/{path.name}" in done.stdout


@pytest.mark.slow
def test_a_test_that_never_comes_there_in_a_new_process_says_what_that_printed(
    session: Session, tmp_path: Path
) -> None:
    begin = 'assert "TORCHPROF_HOOKS_GATE_FILE" not in os.environ, "only here"'
    test = TEST.replace("    model =", f"    {begin}\n    model =")
    (tmp_path / "test_net.py").write_text(test)
    done = session()
    assert done.returncode == 1
    assert "the test did not come to this check in a new process" in done.stdout
    assert "AssertionError: only here" in done.stdout


@THOROUGH
@pytest.mark.parametrize("place", ["option", "settings"])
def test_its_processes_leave_the_folder_for_temporary_files_alone(
    place: str, session: Session, tmp_path: Path
) -> None:
    (tmp_path / "test_net.py").write_text(WRITES_BEFORE)
    given = f"--basetemp={tmp_path / 'temporary'}"
    if place == "settings":
        with (tmp_path / "pytest.ini").open("a") as file:
            file.write(f"addopts = {given}\n")
    done = session(*[given] if place == "option" else [])
    assert done.returncode == 0, done.stdout
    assert "baseline written: " in done.stdout
    (written,) = (tmp_path / "temporary").rglob("written")
    assert written.read_text() == "before the check"


def test_the_number_of_runs_is_checked(session: Session) -> None:
    done = session("-o", "torchprof_runs=none")
    assert done.returncode == 1
    assert "torchprof_runs must be 1 or more, not 'none'" in done.stdout


@pytest.mark.slow
def test_pytest_finds_it_and_imports_torch_only_for_who_asks(tmp_path: Path) -> None:
    installed(tmp_path)
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_nothing():\n"
        "    assert 'torch' not in sys.modules\n"
        "def test_asks(torchprof):\n"
        "    assert 'torch' in sys.modules\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout


def installed(folder: Path) -> None:
    """Have pytest find the plugin by its entry point, as where the package is
    installed. (If it is, this is the same once more.)"""
    told = folder / "x-1.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: x\nVersion: 1\n")
    (told / "entry_points.txt").write_text(entry_point())


def entry_point() -> str:
    """That of the project."""
    text = (ROOT / "pyproject.toml").read_text()
    lines = text.partition("[project.entry-points.pytest11]\n")[2].splitlines()
    name, _, module = lines[0].replace('"', "").partition(" = ")
    assert module == PLUGIN
    return f"[pytest11]\n{name} = {module}\n"
