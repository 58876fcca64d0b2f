"""``python -m torchprof_hooks``: profiles a program, or shows files of profiles.

This module imports little, as every program waits for it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a program, which replaces this process, or one of our commands, as the
    arguments say. Returns the exit code, if this process goes on."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0].endswith(".py"):  # a script, without options for us
        from torchprof_hooks.program.launch import launch

        launch(given, {})
    from torchprof_hooks.program.arguments import parse

    options, program = parse(given)
    if program:
        return _launch(options, program)
    if options.command == "build":
        return _build(options.clear)
    from torchprof_hooks.program.file_tools import run

    return run(options)


def _launch(options: Namespace, program: list[str]) -> int:
    """Run the program as the options say. Returns the exit code if they are wrong."""
    from torchprof_hooks.profiles.errors import FlagError
    from torchprof_hooks.program.flags import as_texts, make_flags, option, settle
    from torchprof_hooks.program.handover import print_warning
    from torchprof_hooks.program.launch import launch

    if _is_profile(program[0]):
        print_warning(
            f"torchprof_hooks: {program[0]} is a profile, and no program: python -m "
            f"torchprof_hooks show {program[0]}"
        )
        return 2
    given = {name: value for name, value in vars(options).items() if value is not None}
    try:
        flags = settle(make_flags(given, option), option)
    except FlagError as error:
        print_warning(f"torchprof_hooks: {error}")
        return 2
    return launch(program, as_texts(flags))


def _is_profile(path: str) -> bool:
    """Whether a file is one of ours, which Python would take for a program."""
    if not path.endswith(".json"):
        return False
    from torchprof_hooks.files.profile_file import provenance_of

    try:
        provenance_of(path)
    except (OSError, ValueError):
        return False
    return True


def _build(clears: bool) -> int:
    """Build the native core, unless it is there, or remove what was built. Returns the
    exit code."""
    import os

    from torchprof_hooks.program.handover import print_warning

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
