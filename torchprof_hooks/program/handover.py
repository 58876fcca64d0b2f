"""What the command leaves in the environment for the interpreter that it becomes.

That one imports this before the program begins, and most of what it starts has nothing
to do with torch: so this imports next to nothing.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping

#: What the program that is being started is told, and the path that it would have had.
FLAGS_VARIABLE = "TORCHPROF_HOOKS_LAUNCH_FLAGS"
PATH_VARIABLE = "TORCHPROF_HOOKS_LAUNCH_PATH"
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
    """Undo `prepare`: for the program, and for what it starts. Returns what is told."""
    told = environment.pop(FLAGS_VARIABLE)
    path = environment.pop(PATH_VARIABLE, None)
    if path is None:
        environment.pop("PYTHONPATH", None)
    else:
        environment["PYTHONPATH"] = path
    return told
