"""Hands settings from the command over to the program's interpreter, through
environment variables; takes the time, and prints complaints.

This module imports next to nothing: the interpreters of a measured program, and most of
these do not use torch, all import it.
"""

from __future__ import annotations

import os
import sys
from time import perf_counter_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

#: When our code first ran: before torch, if the command started the program.
BEGAN_NS = perf_counter_ns()

#: Environment variables with the settings for the program that is being started, and
#: with the PYTHONPATH that it would have without us.
FLAGS_VARIABLE = "TORCHPROF_HOOKS_LAUNCH_FLAGS"
PATH_VARIABLE = "TORCHPROF_HOOKS_LAUNCH_PATH"
#: Parts of the text of the settings: the flag to measure children, too; and that the
#: command launched the program, which the settings for children do not have.
_WITH_CHILDREN = "'children': 'True'"
_LAUNCHED = ", 'launched': True"
BOOTSTRAP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bootstrap")


def prepare(environment: MutableMapping[str, str], text: str) -> None:
    """Change an environment such that an interpreter in it imports us first.

    text: the text of the settings, which `restore` returns in that interpreter.
    """
    path = environment.get("PYTHONPATH")
    environment[FLAGS_VARIABLE] = text
    if path is not None:
        environment[PATH_VARIABLE] = path
    entries = [BOOTSTRAP, path] if path else [BOOTSTRAP]
    environment["PYTHONPATH"] = os.pathsep.join(entries)


def restore(environment: MutableMapping[str, str]) -> str:
    """Undo `prepare` for the program; and for the processes that it starts, unless
    these are measured, too. Returns the text of the settings. It is "" if a measured
    program gave a process our PYTHONPATH, but not our other variables."""
    text = environment.pop(FLAGS_VARIABLE, "")
    if not text:
        entries = environment.get("PYTHONPATH", "").split(os.pathsep)
        others = [entry for entry in entries if entry != BOOTSTRAP]
        environment["PYTHONPATH"] = os.pathsep.join(others)
        return text
    path = environment.pop(PATH_VARIABLE, None)
    if path is None:
        environment.pop("PYTHONPATH", None)
    else:
        environment["PYTHONPATH"] = path
    if _WITH_CHILDREN in text:
        prepare(environment, text.replace(_LAUNCHED, ""))
    return text


def is_of_child(environment: Mapping[str, str]) -> bool:
    """Whether a measured program has prepared this environment, not the command."""
    text = environment.get(FLAGS_VARIABLE)
    return text is not None and _LAUNCHED not in text


def print_warning(line: str) -> None:
    """Print a line to standard error; nothing if that is closed, which is no reason to
    fail, nor to print into the output of the program."""
    if sys.stderr is not None:
        from contextlib import suppress

        with suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)
