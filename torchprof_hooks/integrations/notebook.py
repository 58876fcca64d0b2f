"""``%%torchprof``: profiles a cell of a notebook, and shows the profile below it."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, Final

from IPython import display
from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from torchprof_hooks.profiler import profile

_USAGE: Final = "%%torchprof [--functions] [--memory] [-o NAME]"


def load(shell: Any) -> None:
    """Register the magic in an IPython shell: ``%load_ext torchprof_hooks``."""

    def torchprof(line: str, cell: str) -> None:
        """Profile a cell: %%torchprof [--functions] [--memory] [-o NAME]."""
        _profile_cell(shell, _options(line), cell)

    shell.register_magic_function(torchprof, "cell")


def _profile_cell(shell: Any, args: argparse.Namespace, cell: str) -> None:
    """Run the cell as without the magic, and show its profile. An exception in the cell
    is printed as usual, with the profile until then below it."""
    with profile(functions=args.functions, memory=args.memory) as prof:
        shell.run_cell(cell)
    found = prof.profile
    if args.output:
        shell.user_ns[args.output] = found
    show: Any = display.display  # which has no type annotations
    show(found)


def _options(line: str) -> argparse.Namespace:
    """The options of a line. An error in them is printed as one line below the cell."""
    make: Any = MagicArgumentParser  # which has no type annotations
    parser = make(prog="%%torchprof", description="Profile a cell.")
    parser.add_argument("--functions", action="store_true", help="measure these, too")
    parser.add_argument("--memory", action="store_true", help="measure that, too")
    parser.add_argument(
        "-o", "--output", metavar="NAME", type=_name, help="a variable for the profile"
    )
    try:
        options: argparse.Namespace = parser.parse_args(shlex.split(line))
    except (UsageError, ValueError) as error:
        raise UsageError(f"{error}; usage: {_USAGE}") from None
    return options


def _name(written: str) -> str:
    if not written.isidentifier():
        raise argparse.ArgumentTypeError(f"{written!r} is no name of a variable")
    return written
