"""``%%torchprof``: profiles a cell of a notebook, and shows the profile below it."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NoReturn

from IPython import display
from IPython.core.error import UsageError

from torchprof_hooks.profiler import profile


class _Parser(argparse.ArgumentParser):
    """Parses the options of a magic. An error is shown as one line below the cell."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {self.format_usage().strip()}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Called after --help was printed: ends the magic, not the process."""
        raise UsageError(message or "nothing was run")


def load(shell: Any) -> None:
    """Register the magic in an IPython shell: ``%load_ext torchprof_hooks``."""

    def torchprof(line: str, cell: str) -> None:
        """Profile a cell: %%torchprof [--functions] [--memory] [-o NAME]."""
        _profile_cell(shell, line, cell)

    shell.register_magic_function(torchprof, "cell")


def _profile_cell(shell: Any, line: str, cell: str) -> None:
    """Run the cell as if the magic were not there, and show its profile. An exception
    in the cell is shown as always, with the profile until then below it."""
    args = _options(line)
    with profile(functions=args.functions, memory=args.memory) as prof:
        shell.run_cell(cell)
    found = prof.profile
    if args.output:
        shell.user_ns[args.output] = found
    show: Any = display.display  # which has no type annotations
    show(found)


def _options(line: str) -> argparse.Namespace:
    parser = _Parser(prog="%%torchprof", description="Profile a cell.")
    parser.add_argument("--functions", action="store_true", help="measure these, too")
    parser.add_argument("--memory", action="store_true", help="measure that, too")
    parser.add_argument(
        "-o", "--output", metavar="NAME", type=_name, help="a variable for the profile"
    )
    try:
        words = shlex.split(line)
    except ValueError as error:
        parser.error(str(error))
    return parser.parse_args(words)


def _name(written: str) -> str:
    if not written.isidentifier():
        raise argparse.ArgumentTypeError(f"{written!r} is no name of a variable")
    return written
