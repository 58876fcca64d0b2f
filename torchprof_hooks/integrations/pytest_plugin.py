"""The fixture ``torchprof``: fails a test whose step became slower than it was.

Projects ask for it in their ``conftest.py``, or with ``-p`` on the command line::

    pytest_plugins = ["torchprof_hooks.integrations.pytest_plugin"]
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Final

import pytest

from torchprof_hooks.comparison import Comparison, compare
from torchprof_hooks.files.runs import read_runs
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.errors import ProfileFileError
from torchprof_hooks.profiles.options import (
    check_callable,
    check_positive,
    check_share,
    check_text,
    check_whole,
)
from torchprof_hooks.profiles.run_noise import KEEP_MEMORY

#: The name of the row of a whole step.
STEP: Final = "(step)"
#: The name of the row of fixed work: its time is the speed of the machine.
MACHINE: Final = "(machine)"
_WARM_UP_CALLS, _LEAST_CALLS, _MACHINE_CALLS = 3, 10, 20
#: The environment variable with the place where a new process writes its profile. The
#: file has the name of the baseline, which says which check of the test to measure.
_FILE: Final = "TORCHPROF_HOOKS_MEASURE_INTO"
#: Environment variables that new processes do not get: options of the session, and what
#: xdist gives its workers.
_OF_SESSION: Final = re.compile("PYTEST_(ADDOPTS|XDIST_)")


_IF_MEANT: Final = "if it is meant to be: pytest --torchprof-update"


class PerformanceCheck:
    """The value of the fixture ``torchprof``."""

    def __init__(self, item: Any) -> None:
        self._item = item
        self._paths: set[Path] = set()

    def check(
        self,
        step: Callable[[], object],
        *,
        name: str = "",
        threshold: float | str = 0.1,
        processes: int = 5,
        seconds: float = 1.0,
    ) -> None:
        """Fail if the step, or one of its modules, became slower than the baseline.

        A few new processes measure, one after the other: each runs only this test. The
        baseline is what as many processes have measured before. How much these differ
        among each other is noise (see `torchprof_hooks.compare`). Before the test
        fails, as many processes measure again.

        Args:
            step: a function, such as a training step, that does the same in each call.
            name: the name of the check, if there are several in the test.
            threshold: the share by which it may be slower: 0.1 or "10%".
            processes: how many processes measure, 2 or more.
            seconds: how long each process measures; at least ten calls.

        Raises:
            TypeError, ValueError: a parameter is not valid, or the test has had a check
                of this name before.
        """
        __tracebackhide__ = True
        check_callable("step", step)
        if name != "":
            check_text("name", name)
        share = check_share("threshold", threshold)
        processes = check_whole("processes", processes, 2)
        check_positive("seconds", seconds)
        path = self._path(name)
        if path in self._paths:
            raise ValueError(f"name must be one for each check, not {name!r} again")
        self._paths.add(path)
        into = os.environ.get(_FILE)
        if into is None:
            self._compare(path, share, processes)
        elif Path(into).name == path.name:
            _measure(step, seconds).save(into)

    def _compare(self, path: Path, threshold: float, processes: int) -> None:
        __tracebackhide__ = True
        is_update = self._item.config.getoption("torchprof_update")
        baseline = None if is_update else _load(path)
        runs: list[Profile] = []
        for _ in range(2):
            runs += [_measure_anew(self._item, path.name) for _ in range(processes)]
            if baseline is None:
                _save(runs, path)
                return
            try:
                found = compare(baseline, runs, threshold=threshold)
            except ValueError as error:
                pytest.fail(f"{path}: {error}; {_IF_MEANT}", pytrace=False)
            trouble = _trouble(found)
            if not trouble:
                return
        table = found.report(width=100)
        pytest.fail(f"{path}: {trouble}; {_IF_MEANT}\n\n{table}", pytrace=False)

    def _path(self, name: str) -> Path:
        """The folder of a baseline: one for each test and check."""
        path, config = self._item.path, self._item.config
        folder = config.getini("torchprof_dir")
        root: Path = config.rootpath / folder if folder else path.parent / ".torchprof"
        words = [path.stem, *_names(self._item), name]
        clean = (re.sub(r"[^\w-]+", "_", word, flags=re.ASCII) for word in words)
        return root / ".".join(word.strip("_") for word in clean if word)


def _load(path: Path) -> list[ProfileData]:
    """The baseline. A test without one fails: else, tests would always pass on machines
    that are new each time, as in CI."""
    __tracebackhide__ = True
    try:
        return read_runs(path)
    except FileNotFoundError:
        what = f"there is no baseline {path}: pytest --torchprof-update measures it"
    except ProfileFileError as error:
        what = f"{error}; pytest --torchprof-update measures it anew"
    pytest.fail(what, pytrace=False)


def _save(runs: Sequence[Profile], path: Path) -> None:
    """Make these the baseline."""
    path.mkdir(parents=True, exist_ok=True)
    for before in path.glob("*.json"):
        before.unlink()
    for number, run in enumerate(runs, 1):
        run.save(path / f"{number}.json")


def _trouble(found: Comparison) -> str:
    """What became slower; "" if nothing did."""
    machine = [each for each in found.changes if each.name == MACHINE]
    is_whole = found.together.cause == "unknown"
    # Where rows are too few to take the machine's speed out, its own row has it.
    least = found.threshold
    least += sum(each.relative_change for each in machine) if is_whole else 0.0
    for each in found.slower:
        if each.name != MACHINE and each.relative_change > least:
            return f"{each.name} became slower"
    # What all rows have in common is the machine's speed, unless the machine did its
    # own work faster than the step, both compared with the baseline.
    if found.together.change > found.threshold and any(m.is_faster for m in machine):
        return "all of it became slower, and the machine did not"
    return ""


def _measure(step: Callable[[], object], seconds: float) -> Profile:
    """The profile of some calls, in a process that does nothing else."""
    from torchprof_hooks.function_profiler import region
    from torchprof_hooks.profiler import profile

    whole, machine, prof = region(STEP), region(MACHINE), profile()

    def run(calls: int, seconds: float) -> None:
        until_ns = perf_counter_ns() + seconds * 1e9
        with prof:
            while calls > 0 or perf_counter_ns() < until_ns:
                with whole:
                    step()
                calls -= 1
            for _ in range(_MACHINE_CALLS):
                with machine:
                    _fixed_work()

    gc.collect()
    gc.disable()
    run(_WARM_UP_CALLS, 0)
    prof.take()
    run(_LEAST_CALLS, seconds)
    return prof.take()


def _fixed_work() -> None:
    """Some milliseconds of what steps do: products, passes over memory, Python."""
    import torch

    with torch.no_grad():
        values = torch.full((256, 256), 0.01)
        for _ in range(10):
            values = (values @ values).tanh()
    sum(number * number for number in range(10_000))


def _measure_anew(item: Any, name: str) -> Profile:
    """The profile that a new process measures. New, since the addresses that a process
    happens to get make it faster or slower for as long as it runs."""
    __tracebackhide__ = True
    environment = {
        key: value for key, value in os.environ.items() if not _OF_SESSION.match(key)
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        file, command = folder / name, _command(item, folder)
        done = subprocess.run(
            command,
            cwd=item.config.invocation_params.dir,
            env={**KEEP_MEMORY, **environment, _FILE: str(file)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if not file.is_file():
            printed = "\n".join(done.stdout.splitlines()[-30:])
            pytest.fail(
                "the test did not come to this check in a process of its own "
                f"({' '.join(command)}):\n{printed}",
                pytrace=False,
            )
        return Profile.load(file)


def _command(item: Any, temporary: Path) -> list[str]:
    """A command that runs only this test. It has the settings and the plugins of the
    session, but none of its options, which may name files that the session writes."""
    config = item.config
    settings = ["addopts="]
    if config.pluginmanager.hasplugin("cacheprovider"):
        settings.append(f"cache_dir={temporary / 'cache'}")
    if config.pluginmanager.hasplugin("logging"):
        settings.append("log_file=")
    options = [option for setting in settings for option in ("-o", setting)]
    plugins = [each for each in config.option.plugins if each != "no:terminal"]
    options += [option for plugin in plugins for option in ("-p", plugin)]
    if config.inipath is not None:
        options += ["-c", str(config.inipath)]
    options += [
        *("--rootdir", str(config.rootpath)),
        *("--basetemp", str(temporary / "pytest")),
        *("--import-mode", config.option.importmode),
        *config.getini("torchprof_args"),
    ]
    test = "::".join([str(item.path), *_names(item)])
    return [sys.executable, "-m", "pytest", *options, test]


def _names(item: Any) -> list[str]:
    """The names of a test in its file: ``TestNet``, ``test_step[small]``. Not from its
    node id, to which pytest-xdist may add something."""
    return [node.name for node in item.listchain() if node.path == item.path][1:]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options to the command line, and our settings to the file of settings."""
    parser.getgroup("torchprof").addoption(
        "--torchprof-update",
        action="store_true",
        help="measure the baselines of the fixture `torchprof` anew",
    )
    parser.addini("torchprof_dir", "folder of baselines, not .torchprof beside tests")
    parser.addini("torchprof_args", "options of processes that measure", type="args")


@pytest.fixture
def torchprof(request: pytest.FixtureRequest) -> PerformanceCheck:
    """Fails the test if a step became slower: torchprof.check(step)."""
    return PerformanceCheck(request.node)
