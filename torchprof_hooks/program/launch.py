"""Starts a program as Python would, with us watching.

The program runs in a new interpreter that takes the place of this one, and that is
told by its environment to import ``bootstrap/sitecustomize.py`` first: so its
arguments, its `__main__`, its path, its standard input, its exit code and its
tracebacks are what they are without us.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

#: Flags for the program that is being started, and the path that it would have had.
FLAGS_VARIABLE: Final = "TORCHPROF_HOOKS_LAUNCH_FLAGS"
PATH_VARIABLE: Final = "TORCHPROF_HOOKS_LAUNCH_PATH"
BOOTSTRAP: Final = Path(__file__).parent / "bootstrap"


def launch(program: Sequence[str], flags: Mapping[str, str]) -> NoReturn:
    """Become ``python <program>``: a script or "-m" and a module, and arguments."""
    command = [sys.executable, *interpreter_options(sys.orig_argv), *program]
    environment = dict(os.environ)
    prepare(environment, flags)
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "nt":  # there, nothing can take the place of a process
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)
    os.execve(sys.executable, command, environment)


def interpreter_options(command: Sequence[str]) -> list[str]:
    """What stands between "python" and "-m torchprof_hooks" (or the console command):
    "-u", "-X dev" and the like."""
    options: list[str] = []
    arguments = iter(command[1:])
    for argument in arguments:
        if argument == "-m" or not argument.startswith("-"):
            break
        options.append(argument)
        if argument in ("-X", "-W"):
            options.append(next(arguments))
    return options


def prepare(environment: MutableMapping[str, str], flags: Mapping[str, str]) -> None:
    """Have an interpreter that starts with this environment import us first."""
    path = environment.get("PYTHONPATH")
    environment[FLAGS_VARIABLE] = json.dumps(dict(flags))
    if path is not None:
        environment[PATH_VARIABLE] = path
    entries = [str(BOOTSTRAP), path] if path else [str(BOOTSTRAP)]
    environment["PYTHONPATH"] = os.pathsep.join(entries)


def restore(environment: MutableMapping[str, str]) -> dict[str, str]:
    """Undo `prepare`: for the program, and for what it starts. Returns the flags."""
    flags: dict[str, str] = json.loads(environment.pop(FLAGS_VARIABLE, "{}"))
    path = environment.pop(PATH_VARIABLE, None)
    if path is None:
        environment.pop("PYTHONPATH", None)
    else:
        environment["PYTHONPATH"] = path
    return flags
