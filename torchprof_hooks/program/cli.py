"""``python -m torchprof_hooks``: run a program and profile it, or look at files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import Field, fields
from typing import Any, Final

from torchprof_hooks.program import file_tools
from torchprof_hooks.program.flags import FlagError, Flags, make_flags
from torchprof_hooks.program.launch import launch

#: Commands for files of profiles.
FILE_TOOLS: Final = ("show", "compare", "merge")
#: How a program begins that is not a script: as for Python.
_PROGRAMS: Final = ("-m", "-c", "-")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say: run a program, which takes the place of this process,
    or look at files of profiles. Returns the exit code of what ends here."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in FILE_TOOLS:
        return file_tools.main(given)
    options, program = split(given)
    parser = _make_parser()
    flags = vars(parser.parse_args(options))
    if not program:
        parser.print_help(sys.stderr)
        return 2
    texts = {name: str(value) for name, value in flags.items() if value is not None}
    try:
        make_flags(texts)
    except FlagError as error:
        print(f"torchprof_hooks: {error}", file=sys.stderr)
        return 2
    return launch(program, {"profile": "True", **texts})


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our options, and from the script on ("-m", "-c", or "-" for standard input) what
    is the program's; argparse would look for ours among those of the program."""
    with_value = {_option(flag) for flag in fields(Flags) if flag.default is not False}
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        if argument in _PROGRAMS or not argument.startswith("-"):
            break
        position += 2 if argument in with_value else 1
    return list(arguments[:position]), list(arguments[position:])


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torchprof_hooks",
        usage="%(prog)s [options] (script.py | -m module | -c code | -) [arguments]\n"
        f"       %(prog)s ({' | '.join(FILE_TOOLS)}) ...",
        description="Run a program, and print when it ends where its time went; or "
        "look at files of profiles.",
        allow_abbrev=False,
    )
    for flag in fields(Flags):
        if flag.name != "profile":
            _add_option(parser, flag)
    return parser


def _option(flag: Field[Any]) -> str:
    return "--" + flag.name.replace("_", "-")


def _add_option(parser: argparse.ArgumentParser, flag: Field[Any]) -> None:
    meaning = flag.metadata["meaning"]
    if flag.default is False:
        parser.add_argument(
            _option(flag), action="store_const", const=True, help=meaning
        )
    else:
        help_text = f"{meaning} (default: {flag.default!r})"
        parser.add_argument(_option(flag), metavar="VALUE", help=help_text)
