"""``python -m torchprof_hooks``: run a program and profile it, or look at files.

Every program waits for the imports of this module, so there are few.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: Commands for files of profiles.
FILE_TOOLS = ("show", "compare", "merge", "ranks")
#: The command that builds the native core.
BUILD = "build"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say: run a program, which takes the place of this process,
    or a command of ours. Returns the exit code, if this process goes on."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in FILE_TOOLS:
        from torchprof_hooks.program import file_tools

        return file_tools.main(given)
    if given and given[0] == BUILD:
        return _build(given[1:])
    if given and not given[0].startswith("-"):  # a script, and no options for us
        from torchprof_hooks.program.launch import launch

        launch(given, {})
    from torchprof_hooks.program.arguments import launch_with_options

    return launch_with_options(given, (*FILE_TOOLS, BUILD))


def _build(arguments: Sequence[str]) -> int:
    """Build the native core, if it is not there. Returns the exit code."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m torchprof_hooks build",
        description="Build the native core for the installed torch, if it is not "
        "there, and say where it is.",
    )
    parser.parse_args(arguments)
    from torchprof_hooks.capture.core.build import native_module
    from torchprof_hooks.capture.core.compiler import NotBuiltError
    from torchprof_hooks.program.handover import complain

    try:
        path = native_module().__file__
    except NotBuiltError as error:
        complain(f"torchprof_hooks: no native core: {error}")
        return 1
    print(f"torchprof_hooks: the native core is in {path}")
    return 0
