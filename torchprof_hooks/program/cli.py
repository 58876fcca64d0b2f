"""``python -m torchprof_hooks``: profiles a program, or shows files of profiles.

This module imports little, as every program waits for it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Commands for files of profiles, and what each does.
FILE_TOOLS = {
    "show": "print a profile, or turn it into another format",
    "compare": "what became slower between two profiles",
    "merge": "add profiles up, of several runs or ranks",
    "ranks": "which rank the others wait for, and where it spends that",
}
#: The command that builds the native core.
BUILD = "build"
COMMANDS = {**FILE_TOOLS, BUILD: "build the native core, if it is not there"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a program, which replaces this process, or one of our commands, as the
    arguments say. Returns the exit code, if this process goes on."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in FILE_TOOLS:
        from torchprof_hooks.program import file_tools

        return file_tools.main(given)
    if given and given[0] == BUILD:
        return _build(given[1:])
    if given and not given[0].startswith("-"):  # a script, without options for us
        if meant := _command_meant(given[0]):
            from torchprof_hooks.program.handover import print_warning

            print_warning(
                f"torchprof_hooks: there is no file {given[0]!r}, and no command of "
                f"that name: did you mean {called_as()} {meant}?"
            )
            return 2
        from torchprof_hooks.program.launch import launch

        launch(given, {})
    from torchprof_hooks.program.arguments import launch_with_options

    return launch_with_options(given, COMMANDS)


def called_as() -> str:
    """The name by which the command was called, for messages."""
    is_script = not sys.argv[0].endswith("__main__.py")
    return "torchprof-hooks" if is_script else "python -m torchprof_hooks"


def did_you_mean(unknown: Sequence[str], options: Iterable[str]) -> str:
    """``; did you mean --full?``, for the first unknown option that is like another."""
    from difflib import get_close_matches

    known = list(options)
    for argument in unknown:
        if argument.startswith("--"):
            for close in get_close_matches(argument.partition("=")[0], known, 1):
                return f"; did you mean {close}?"
    return ""


def _command_meant(script: str) -> str:
    """The command whose name is most like that of a missing script; "" if none is, or
    the script is not missing."""
    import os

    if "." in script or os.sep in script or os.path.exists(script):
        return ""
    from difflib import get_close_matches

    return next(iter(get_close_matches(script, COMMANDS, 1)), "")


def _build(arguments: Sequence[str]) -> int:
    """Build the native core, unless it is there, or remove what was built. Returns the
    exit code."""
    import argparse
    import os

    from torchprof_hooks.program.handover import print_warning

    parser = argparse.ArgumentParser(
        prog=f"{called_as()} {BUILD}",
        description="Build the native core for the installed torch, if it is not "
        "there, and say where it is.",
    )
    parser.add_argument(
        "--clear",
        action="store_true",
        help="instead, remove all that was built for this user, for any torch",
    )
    clears = parser.parse_args(arguments).clear
    if clears:
        os.environ["TORCHPROF_HOOKS_CORE"] = "python"  # or what follows would build one
    from torchprof_hooks.kernel.native.build import clear_cache, native_module
    from torchprof_hooks.kernel.native.compiler import NotBuiltError

    try:
        path = clear_cache() if clears else native_module().__file__
    except NotBuiltError as error:
        print_warning(f"torchprof_hooks: no native core: {error}")
        return 1
    said = "removed" if clears else "the native core is in"
    print(f"torchprof_hooks: {said} {path}")
    return 0
