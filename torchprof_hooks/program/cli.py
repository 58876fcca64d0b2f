"""``python -m torchprof_hooks``: run a program and profile it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import Field, fields
from typing import Any

from torchprof_hooks.program.flags import FlagError, Flags, make_flags
from torchprof_hooks.program.launch import launch


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments say; it takes the place of this process. Returns the exit
    code if there is nothing to run."""
    parser = _make_parser()
    args = parser.parse_args(arguments)
    program = [*(["-m", args.module] if args.module else []), *args.program]
    if not program:
        parser.print_help(sys.stderr)
        return 2
    given = {
        flag.name: str(getattr(args, flag.name))
        for flag in fields(Flags)
        if getattr(args, flag.name, None) is not None
    }
    try:
        make_flags(given)
    except FlagError as error:
        print(f"torchprof_hooks: {error}", file=sys.stderr)
    else:
        launch(program, {"profile": "True", **given})
    return 2


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torchprof_hooks",
        description="Run a program, and print when it ends where its time went.",
        allow_abbrev=False,
    )
    for flag in fields(Flags):
        if flag.name != "profile":
            _add_option(parser, flag)
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module")
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="script.py [arguments]",
        help="what to run, and its own arguments",
    )
    return parser


def _add_option(parser: argparse.ArgumentParser, flag: Field[Any]) -> None:
    option = "--" + flag.name.replace("_", "-")
    meaning = flag.metadata["meaning"]
    if flag.default is False:
        parser.add_argument(option, action="store_const", const=True, help=meaning)
    else:
        help_text = f"{meaning} (default: {flag.default!r})"
        parser.add_argument(option, metavar="VALUE", help=help_text)
