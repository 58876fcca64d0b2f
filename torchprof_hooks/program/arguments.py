"""The command's own options, which come before the program."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from typing import Any, Final

from torchprof_hooks.profiles.errors import FlagError
from torchprof_hooks.program.cli import called_as, did_you_mean
from torchprof_hooks.program.flags import (
    ELSEWHERE,
    Flags,
    as_texts,
    make_flags,
    option,
    settle,
)
from torchprof_hooks.program.handover import print_warning
from torchprof_hooks.program.launch import launch
from torchprof_hooks.version import __version__

#: Options that are no flags.
_OTHERS: Final = ("--help", "--version", "--profile-memory")
#: The first argument of a program that is not a script, as in Python's own command.
_PROGRAMS: Final = ("-m", "-c", "-")


def launch_with_options(given: Sequence[str], commands: Mapping[str, str]) -> int:
    """Run the program behind the options, as these say. Returns the exit code if the
    options are wrong, or if there is no program.

    commands: our other commands, with their descriptions, for the help.
    """
    options, program = split(given)
    parser = _make_parser(commands)
    known, unknown = parser.parse_known_args(options)
    if unknown:
        every = [*map(option, (flag.name for flag in fields(Flags))), *_OTHERS]
        complaint = f"unrecognized arguments: {' '.join(unknown)}"
        complaint += did_you_mean(unknown, every)
        instead = [text for name, text in ELSEWHERE.items() if option(name) in unknown]
        parser.error("; ".join([complaint, *instead]))
    found = vars(known)
    if not program:
        parser.print_help(sys.stderr or sys.stdout)
        return 2
    given_flags = {name: value for name, value in found.items() if value is not None}
    try:
        flags = settle(make_flags(given_flags, option), option)
    except FlagError as error:
        print_warning(f"torchprof_hooks: {error}")
        return 2
    return launch(program, as_texts(flags))


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our options; and the arguments from the script on (or from "-m", "-c", or "-" for
    standard input). Argparse would take options of the program for ours."""
    with_value = {
        option(flag.name) for flag in fields(Flags) if flag.default is not False
    }
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        if argument in _PROGRAMS or not argument.startswith("-"):
            break
        position += 2 if argument in with_value else 1
    return list(arguments[:position]), list(arguments[position:])


def _make_parser(commands: Mapping[str, str]) -> argparse.ArgumentParser:
    width = max(map(len, commands))
    lines = [f"  {name:{width}}  {meaning}" for name, meaning in commands.items()]
    parser = argparse.ArgumentParser(
        prog=called_as(),
        usage="%(prog)s [options] (script.py | -m module | -c code | -) [arguments]\n"
        "       %(prog)s COMMAND ...",
        description="Run a program, and print when it ends where its time went; or "
        "look at files of profiles.",
        epilog="\n".join(["commands (COMMAND --help tells more):", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"torchprof-hooks {__version__}"
    )
    for flag in fields(Flags):
        if flag.name != "profile":
            _add_option(parser, flag)
    return parser


def _add_option(parser: argparse.ArgumentParser, flag: Field[Any]) -> None:
    meaning = flag.metadata["meaning"].replace("%", "%%")
    name, also = option(flag.name), f"--{flag.name.replace('_', '-')}"
    if flag.default is False:
        names = dict.fromkeys((name, also))
        parser.add_argument(
            *names, dest=flag.name, action="store_const", const=True, help=meaning
        )
    else:
        has_no_default = flag.default is None or flag.default == ""
        usual = "" if has_no_default else f" (default: {flag.default})"
        value = flag.metadata["value"]
        parser.add_argument(name, metavar=value, help=f"{meaning}{usual}")
