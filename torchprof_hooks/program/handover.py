"""What is needed before a program begins: the time, the settings that the command has
put into the environment, and a way to complain.

Most of the programs that import this module have nothing to do with torch. So it
imports next to nothing.
"""

from __future__ import annotations

import os
import sys
from time import perf_counter_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

#: When this module was imported: before torch, if the command started the program.
BEGAN_NS = perf_counter_ns()

#: Variables for the settings of the program that is being started, and for the
#: PYTHONPATH that it would have without us.
FLAGS_VARIABLE = "TORCHPROF_HOOKS_LAUNCH_FLAGS"
PATH_VARIABLE = "TORCHPROF_HOOKS_LAUNCH_PATH"
#: Parts of the text of the settings: that children are to be measured, too; and when
#: the command has launched the program, which is left out for children.
_WITH_CHILDREN = "'children': 'True'"
_LAUNCHED = ", 'launched_ns'"
BOOTSTRAP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bootstrap")


def prepare(environment: MutableMapping[str, str], told: str) -> None:
    """Have an interpreter that starts with this environment import us first.

    told: the text of the settings, which `restore` returns there.
    """
    path = environment.get("PYTHONPATH")
    environment[FLAGS_VARIABLE] = told
    if path is not None:
        environment[PATH_VARIABLE] = path
    entries = [BOOTSTRAP, path] if path else [BOOTSTRAP]
    environment["PYTHONPATH"] = os.pathsep.join(entries)


def restore(environment: MutableMapping[str, str]) -> str:
    """Undo `prepare` for the program and for the processes that it starts, unless these
    are to be measured, too. Returns the text of the settings; "" if there is none: a
    program that is measured has chosen what others are given of its environment."""
    told = environment.pop(FLAGS_VARIABLE, "")
    if not told:
        entries = environment.get("PYTHONPATH", "").split(os.pathsep)
        others = [entry for entry in entries if entry != BOOTSTRAP]
        environment["PYTHONPATH"] = os.pathsep.join(others)
        return told
    path = environment.pop(PATH_VARIABLE, None)
    if path is None:
        environment.pop("PYTHONPATH", None)
    else:
        environment["PYTHONPATH"] = path
    if _WITH_CHILDREN in told:
        prepare(environment, told.partition(_LAUNCHED)[0] + "}")
    return told


def is_of_child(environment: Mapping[str, str]) -> bool:
    """Whether an interpreter that starts with this environment has been prepared by a
    program that is measured, and not by the command."""
    told = environment.get(FLAGS_VARIABLE)
    return told is not None and _LAUNCHED not in told


def complain(line: str) -> None:
    """Print a line to standard error. If that is closed, print nothing: this is no
    reason to fail, nor to mix the line with the output of the program."""
    if sys.stderr is not None:
        from contextlib import suppress

        with suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)
