"""Starts a program as Python would, but measured.

The program runs in a new interpreter, which replaces this one, and which imports
``bootstrap/sitecustomize.py`` first, due to its environment. So the program's
arguments, `__main__`, path, standard input, exit code and tracebacks are the same as
without us.
"""

from __future__ import annotations

import os
import sys

from torchprof_hooks.program.handover import prepare, print_warning

TYPE_CHECKING = False  # every program waits for what this imports
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

#: Options of Python with a value, which is in the same or in the next argument.
_WITH_VALUE = "XW"


def launch(program: Sequence[str], flags: Mapping[str, str]) -> NoReturn:
    """Replace this process by ``python <program>``, measured.

    program: a script, or "-m" and a module, and arguments.
    flags: the texts of flags by name; others have their defaults.
    """
    command = [sys.executable, *interpreter_options(sys.orig_argv), *program]
    environment = dict(os.environ)
    blinding = blinding_option()
    if blinding:
        print_warning(
            f"torchprof_hooks: the program is not measured: with Python's {blinding}, "
            "nothing can be imported before it; leave that out, or call "
            "torchprof_hooks.enable() in the program"
        )
    else:
        given = {"flags": {**flags, "profile": "True"}, "launched": True}
        prepare(environment, repr(given))
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # else it is closed, also for the program
            stream.flush()
    if os.name == "nt":  # Windows cannot replace a running process
        import subprocess

        sys.exit(subprocess.run(command, env=environment, check=False).returncode)
    os.execve(sys.executable, command, environment)


def blinding_option() -> str:
    """The option of this interpreter, and so of the program's, that keeps Python from
    importing us first; "" if it has none."""
    if sys.flags.isolated:
        return "-I"
    if sys.flags.ignore_environment:
        return "-E"
    return "-S" if sys.flags.no_site else ""


def interpreter_options(command: Sequence[str]) -> list[str]:
    """The options between "python" and "-m torchprof_hooks" (or the console command),
    such as "-u" and "-X dev"; also those in "-um torchprof_hooks"."""
    options: list[str] = []
    arguments = iter(command[1:])
    for argument in arguments:
        if argument.startswith("--"):
            options.append(argument)
        elif not argument.startswith("-") or argument == "-":
            break
        else:
            kept, is_module = _before_module(argument)
            options += [kept] if kept else []
            if is_module:
                break
            if _wants_value(kept):
                options.append(next(arguments))
    return options


def _before_module(bundle: str) -> tuple[str, bool]:
    """The letters before the "m" in a bundle like "-Bum", and whether it has an "m"."""
    for position, letter in enumerate(bundle):
        if letter in _WITH_VALUE:
            break
        if letter == "m":
            return (bundle[:position] if position > 1 else ""), True
    return bundle, False


def _wants_value(bundle: str) -> bool:
    """Whether the next argument is the value of the last letter."""
    wanting = (n for n, letter in enumerate(bundle) if letter in _WITH_VALUE)
    return next(wanting, -1) == len(bundle) - 1
