"""Measures a step of a test in a new process: what chance decides for a process, such
as where its memory is, stays the same for as long as the process runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest

from torchprof_hooks.integrations.gate.baseline import Run, load

#: Variables that tell a new process where to write its result, and of which check.
FILE: Final = "TORCHPROF_HOOKS_GATE_FILE"
CHECK: Final = "TORCHPROF_HOOKS_GATE_CHECK"
_LINES: Final = 30


def measure_again(item: Any, check: str) -> Run:
    """Run a test alone in a new process, and return what it has measured there. If that
    is nothing, the test fails, with the last lines that the process has printed.

    check: the name of the check to measure, of those in the test.
    """
    __tracebackhide__ = True
    command = _command_for(item)
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "run.json"
        # Pytest empties its folder for temporary files: it must not be that of the
        # session that runs, which options or a file of settings may name.
        own_folder = ("--basetemp", str(Path(temporary) / "pytest"))
        done = subprocess.run(
            [*command, *own_folder],
            cwd=item.config.invocation_params.dir,
            env={**os.environ, FILE: str(file), CHECK: check},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if not file.is_file():
            lines = done.stdout.splitlines()[-_LINES:]
            pytest.fail(
                "the test did not come to this check in a new process "
                f"({' '.join(command)}):\n" + "\n".join(lines),
                pytrace=False,
            )
        run: Run = load(Run, file)
    return run


def name_in_file(item: Any) -> str:
    """The name of a test in its file: ``TestNet::test_step[small]``. Its node id may
    have more, added by pytest-xdist."""
    chain = [node.name for node in item.listchain() if node.path == item.path]
    return "::".join(chain[1:])


def _command_for(item: Any) -> list[str]:
    """A command that runs a test alone, with the options of this session of pytest."""
    config = item.config
    worker = getattr(config, "workerinput", None)  # of pytest-xdist, which keeps argv
    given = config.invocation_params.args if worker is None else worker["mainargv"][1:]
    paths = set(map(str, config.args))
    options = [each for each in map(str, given) if each not in paths]
    if config.inipath is not None:
        options += ["-c", str(config.inipath)]
    if config.pluginmanager.hasplugin("xdist"):
        options += ["-n", "0"]
    if config.pluginmanager.hasplugin("_cov"):
        options += ["--no-cov"]
    if config.option.xmlpath:
        options += ["--junitxml", os.devnull]
    test = f"{item.path}::{name_in_file(item)}"
    rootdir = ("--rootdir", str(config.rootpath))
    return [sys.executable, "-m", "pytest", *options, *rootdir, test]
