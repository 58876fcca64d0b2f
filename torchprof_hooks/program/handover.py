"""What is needed before a program begins: the time, the settings that the command has
put into the environment, and a way to complain.

Most of the programs that import this have nothing to do with torch. So it imports next
to nothing.
"""

from __future__ import annotations

import os
import sys
from time import perf_counter_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

#: When this was imported: before torch, if we were told to watch the program.
BEGAN_NS = perf_counter_ns()

#: Variables for the settings of the program that is being started, and for the
#: PYTHONPATH that it would have.
FLAGS_VARIABLE = "TORCHPROF_HOOKS_LAUNCH_FLAGS"
PATH_VARIABLE = "TORCHPROF_HOOKS_LAUNCH_PATH"
#: In what is told: that children are to be measured; and when a program was launched,
#: which they were not.
_WITH_CHILDREN = "'children': 'True'"
_LAUNCHED = ", 'launched_ns'"
BOOTSTRAP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bootstrap")


def prepare(environment: MutableMapping[str, str], told: str) -> None:
    """Have an interpreter that starts with this environment import us first."""
    path = environment.get("PYTHONPATH")
    environment[FLAGS_VARIABLE] = told
    if path is not None:
        environment[PATH_VARIABLE] = path
    entries = [BOOTSTRAP, path] if path else [BOOTSTRAP]
    environment["PYTHONPATH"] = os.pathsep.join(entries)


def restore(environment: MutableMapping[str, str]) -> str:
    """Undo `prepare`: for the program, and for what it starts, unless that is to be
    measured, too. Returns what is told."""
    told = environment.pop(FLAGS_VARIABLE)
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
    """Print a line to standard error. If that is closed, nothing is printed: it is no
    reason to fail, nor to print between the outputs of the program."""
    if sys.stderr is not None:
        from contextlib import suppress

        with suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)
