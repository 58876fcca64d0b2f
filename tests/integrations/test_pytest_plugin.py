"""The plugin in sessions of pytest, whose tests look at a clock that planted work moves
alone, in the processes that they start as well."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Final

import pytest
from _pytest.outcomes import Failed

from tests.build import profile_of, timed
from tests.running import TORCH, python
from torchprof_hooks import Profile, compare
from torchprof_hooks.files.runs import read_runs
from torchprof_hooks.integrations import pytest_plugin
from torchprof_hooks.integrations.pytest_plugin import (
    MACHINE,
    PerformanceCheck,
    _trouble,
)
from torchprof_hooks.profiles.totals import Totals

ROOT: Final = Path(__file__).parents[2]

pytestmark = pytest.mark.slow

#: The clock is there before anything reads it.
CONFTEST: Final = """
import time

now_ns = [1_000_000_000]
time.perf_counter_ns = lambda: now_ns[0]

def burn(milliseconds):
    now_ns[0] += round(milliseconds * 1e6)

pytest_plugins = ["torchprof_hooks.integrations.pytest_plugin"]
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

def bad_luck():
    if "UNLUCKY" not in os.environ or os.path.exists("unlucky"):
        return 0
    open("unlucky", "w").close()
    return 600

def test_step(torchprof, tmp_path):
    (tmp_path / "written").write_text("")
    model = nn.Sequential(Busy("ONE"), Busy("TWO"))
    lost = []
    def step():
        lost.append(lost[0] if lost else bad_luck())
        burn(lost[0])
        model(torch.ones(1, 2)).sum().backward()
    torchprof.check(step, processes=2)
"""

#: A session in a folder, with these options, and these variables besides.
Session = Callable[..., CompletedProcess[str]]


@pytest.fixture
def session(tmp_path: Path) -> Session:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_net.py").write_text(TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def run(*options: str, **more: str) -> CompletedProcess[str]:
        before = os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join([str(tmp_path), str(ROOT), before])
        alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": path}
        environment = {**os.environ, **alone, **more}
        arguments = ("-m", "pytest", "-p", "no:cacheprovider", *options)
        return python(
            *arguments, environment=environment, folder=tmp_path, loaded=TORCH
        )

    return run


def step_ms(folder: Path) -> list[float]:
    """How long a step took, in each process."""
    rows = [
        {row.name: row for row in run.rows()}["(step)"] for run in read_runs(folder)
    ]
    return [row.cumulative_ns / row.calls / 1e6 for row in rows]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.thorough
def test_what_is_slower_than_the_baseline_fails(
    session: Session, tmp_path: Path
) -> None:
    """Processes run one test of two, so what they would write is not what the session
    has to: its log, its results, and the folder for temporary files, which pytest
    empties."""
    path = tmp_path / ".torchprof" / "test_net.test_step"
    none = session()
    assert none.returncode == 1
    assert str(path) in none.stdout
    assert not path.exists()

    with (tmp_path / "test_net.py").open("a") as file:
        file.write("def test_logs():\n    import logging\n    logging.error('here')\n")
    with (tmp_path / "pytest.ini").open("a") as file:
        file.write(f"log_file = other\naddopts = --log-file={tmp_path / 'log'}\n")
    updated = session(
        *("--torchprof-update", f"--junitxml={tmp_path / 'results.xml'}"),
        PYTEST_ADDOPTS=f"--basetemp={tmp_path / 'temporary'}",
    )
    assert updated.returncode == 0, updated.stdout
    assert step_ms(path) == [60, 60]
    assert "here" in (tmp_path / "log").read_text()
    assert not (tmp_path / "other").exists()
    assert (tmp_path / "results.xml").read_text().count("<testcase") == 2
    assert len(list((tmp_path / "temporary").rglob("written"))) == 1

    written = contents(path)
    same = session(ONE="32")
    assert same.returncode == 0, same.stdout

    slower = session(ONE="45")
    assert slower.returncode == 1
    rows = re.findall(r"^(\S+) +forward .* slower$", slower.stdout, re.MULTILINE)
    # Where CI runs, pytest repeats the whole message in its summary.
    assert sorted(set(rows)) == ["(step)", "Sequential", "Sequential.0"]
    assert "Traceback" not in slower.stdout
    assert contents(path) == written

    (path / "1.json").write_text("{")
    damaged = session()
    assert damaged.returncode == 1
    assert str(path) in damaged.stdout


@pytest.mark.parametrize(("again_ms", "is_slower"), [(60, False), (90, True)])
def test_what_looks_slower_is_measured_again(
    again_ms: float,
    is_slower: bool,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first two processes may have had bad luck."""
    for number, run in enumerate(measured(0, [60], 1)):
        run.save(tmp_path / f"{number}.json")
    times = iter([90.0, 90.0, again_ms, again_ms])
    monkeypatch.setattr(
        pytest_plugin, "_measure_anew", lambda *_: measured(1, [next(times)], 1)[0]
    )
    options = request.config.option
    monkeypatch.setattr(options, "torchprof_update", False, raising=False)
    check = PerformanceCheck(request.node)
    with pytest.raises(Failed) if is_slower else nullcontext():
        check._compare(tmp_path, 0.1, 2)
    assert not [*times]


@pytest.mark.thorough
def test_bad_luck_of_one_process_fails_nothing(
    session: Session, tmp_path: Path
) -> None:
    assert session("--torchprof-update").returncode == 0
    same = session(UNLUCKY="once")
    assert same.returncode == 0, same.stdout
    assert (tmp_path / "unlucky").exists()


@pytest.mark.thorough
def test_workers_of_xdist_write_a_file_for_each_check(
    session: Session, tmp_path: Path
) -> None:
    pytest.importorskip("xdist", reason="of the extra `test`")
    second = "    torchprof.check(lambda: burn(50), name='no model', processes=2)\n"
    (tmp_path / "test_net.py").write_text(TEST + second)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntorchprof_dir = kept\n")
    done = session("-p", "xdist", "-n", "1", "--torchprof-update")
    assert done.returncode == 0, done.stdout
    assert {path.name: step_ms(path) for path in (tmp_path / "kept").iterdir()} == {
        "test_net.test_step": [60, 60],
        "test_net.test_step.no_model": [50, 50],
    }


@pytest.mark.thorough
def test_what_a_process_printed_is_told_if_it_never_comes_there(
    session: Session, tmp_path: Path
) -> None:
    """The option that the test needs is given to the session alone, and then to all."""
    with (tmp_path / "conftest.py").open("a") as file:
        file.write(
            "def pytest_addoption(parser):\n"
            "    parser.addoption('--needed', action='store_true')\n"
        )
    begin = 'assert request.config.getoption("needed"), "only there"'
    test = TEST.replace("torchprof, tmp_path", "torchprof, tmp_path, request")
    test = test.replace("    model =", f"    {begin}\n    model =")
    (tmp_path / "test_net.py").write_text(test)
    done = session("--torchprof-update", "--needed")
    assert done.returncode == 1
    assert "AssertionError: only there" in done.stdout
    (tmp_path / "pytest.ini").write_text("[pytest]\ntorchprof_args = --needed\n")
    done = session("--torchprof-update", "--needed")
    assert done.returncode == 0, done.stdout


def measured(seed: int, layers_ms: Sequence[float], machine_ms: float) -> list[Profile]:
    """What processes have measured."""
    rng, times = random.Random(seed), {MACHINE: machine_ms}
    times |= {f"Net.{n}": ms for n, ms in enumerate(layers_ms)}

    def cell(ms: float) -> Totals:
        return timed(*(round(ms * 1e6 * rng.gauss(1, 0.005)) for _ in range(9)))

    return [
        profile_of(
            {(name, "forward"): cell(ms) for name, ms in times.items()},
            dict.fromkeys(times, "Layer"),
        )
        for _ in range(5)
    ]


@pytest.mark.parametrize(
    ("layers_ms", "machine_ms", "trouble"),
    [
        ([1, 2, 4, 4, 5], 1, "Net.2 became slower"),
        ([1.5, 3, 4.5, 6, 7.5], 1.5, ""),
        ([1.5, 3, 4.5, 6, 7.5], 1, "all of it became slower, and the machine did not"),
        ([1, 2, 3, 4, 5], 1.5, ""),
    ],
)
def test_the_machine_is_told_from_the_step(
    layers_ms: list[float], machine_ms: float, trouble: str
) -> None:
    old = measured(0, [1, 2, 3, 4, 5], 1)
    found = compare(old, measured(1, layers_ms, machine_ms), threshold=0.1)
    assert _trouble(found) == trouble


@pytest.mark.parametrize(
    ("layer_ms", "machine_ms", "trouble"),
    [(1.5, 1, "Net.0 became slower"), (1.5, 1.5, ""), (1, 1, "")],
)
def test_of_a_single_module_too(
    layer_ms: float, machine_ms: float, trouble: str
) -> None:
    found = compare(measured(0, [1], 1), measured(1, [layer_ms], machine_ms))
    assert found.together.cause == "unknown"
    assert _trouble(found) == trouble


@pytest.mark.parametrize(
    "wrong",
    [
        *({"step": None}, {"name": 3}, {"threshold": "much"}, {"processes": 1}),
        {"seconds": -1},
    ],
    ids=str,
)
def test_what_is_wrong_is_named(
    wrong: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    [name] = wrong
    with pytest.raises((TypeError, ValueError), match=name):
        PerformanceCheck(request.node).check(**{"step": int, **wrong})
