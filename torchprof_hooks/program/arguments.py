"""The tree of all arguments: options for a program, and the commands with theirs."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from torchprof_hooks.profiles.compare import ENOUGH_RUNS
from torchprof_hooks.profiles.names import GROUPINGS, SORT_KEYS
from torchprof_hooks.profiles.options import check_share
from torchprof_hooks.program.flags import Flags, did_you_mean, option
from torchprof_hooks.version import __version__

#: How often ``compare --run`` runs each program.
RUNS: Final = ENOUGH_RUNS
#: The first argument of a program that is not a script, as in Python's own command.
_PROGRAMS: Final = ("-m", "-c", "-")


def _threshold(written: str) -> float:
    try:
        return check_share("it", written)
    except ValueError as error:
        message = str(error).removeprefix("it ")  # argparse names the option
        raise argparse.ArgumentTypeError(message) from None


def _positive(written: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d{0,8}", written, re.ASCII):
        raise argparse.ArgumentTypeError(f"{written!r} is not a positive number")
    return int(written)


def _argument(*names: str, **options: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return names, options


class Command(NamedTuple):
    """A command, what it does in a few words and in full.

    arguments: its own arguments, as argparse takes them.
    formats: what ``--format`` may be, the default first, and which of `_SHARED` each
        takes.
    """

    does: str
    description: str
    arguments: Sequence[tuple[tuple[str, ...], dict[str, Any]]]
    formats: Mapping[str, tuple[str, ...]] = {}

    @property
    def shared(self) -> list[str]:
        """Those of `_SHARED` that some format takes."""
        taken = set().union(*self.formats.values())
        return [name for name in _SHARED if name in taken]


#: Options of several commands.
_SHARED: Final[Mapping[str, dict[str, Any]]] = {
    "full": {"action": "store_true", "help": "print all tables below the screen"},
    "by": {
        "choices": GROUPINGS,
        "help": "rows are one per module, class, function or call site",
    },
    "max_rows": {
        "type": _positive,
        "metavar": "N",
        "help": "rows of each table (default: 10 to 40)",
    },
    "sort_by": {
        "choices": SORT_KEYS,
        "help": "the column by which rows of tables are chosen and sorted",
    },
}
COMMANDS: Final[Mapping[str, Command]] = {
    "show": Command(
        "print a profile, or turn it into another format",
        "Print a profile: on one screen, or as tables if anything is said of these. "
        "Speedscope draws flame graphs of own times. A report is that of a whole "
        "program, with Theano's tables. A page (html) is for a browser, Markdown (md) "
        "for an issue or an agent.",
        [_argument("file", type=Path)],
        {
            "text": ("full", "by", "max_rows", "sort_by"),
            "report": ("max_rows",),
            "html": (),
            "md": (),
            "json": ("by",),
            "csv": ("by",),
            "speedscope": (),
        },
    ),
    "compare": Command(
        "what became slower between two profiles",
        "Compare the time of a call, row by row. The exit code is 1 if any became "
        "slower, by more than --fail-above and in every new run than in every old "
        "one. That takes a few runs: give two programs and --run, or two folders "
        "with a profile of each run.",
        [
            _argument("old", help="a profile, or a folder with a profile of each run"),
            _argument("new", help="the same of the changed program"),
            _argument(
                "--run",
                action="store_true",
                help="old and new are programs: run both in turns, each run in a "
                "process of its own; arguments in quotes: "
                'compare --run "old.py --fast" "new.py --fast"',
            ),
            _argument(
                *("-n", "--runs"),
                type=_positive,
                metavar="N",
                help=f"how often --run runs each of them (default: {RUNS}), after a "
                "first time that does not count",
            ),
            _argument(
                "--keep",
                type=Path,
                metavar="folder",
                help="keep the profiles of --run there, in the folders old and new",
            ),
            _argument(
                "--fail-above",
                type=_threshold,
                default="5%",
                metavar="SHARE",
                help="what a row may become slower: "
                '"5%%" (the default), "2.5%%" or 0.025',
            ),
        ],
        {
            "text": ("by", "max_rows"),
            "html": ("by",),
            "md": ("by",),
            "json": ("by",),
        },
    ),
    "merge": Command(
        "add profiles up, of several runs or ranks",
        "Add up profiles of several runs or ranks into one file.",
        [
            _argument("files", type=Path, nargs="+", metavar="file"),
            _argument("-o", "--output", type=Path, required=True, metavar="file"),
        ],
    ),
    "ranks": Command(
        "which rank the others wait for, and where it spends that",
        "Put the ranks of the newest run in a folder side by side: which one the "
        "others wait for, in which module or code it spends that, the phases of each, "
        "and the rows in which they differ.",
        [_argument("folder", type=Path)],
        {
            "text": ("by", "max_rows"),
            "html": ("by",),
            "md": ("by",),
            "json": ("by",),
            "csv": ("by",),
        },
    ),
    "build": Command(
        "build the native core, if it is not there",
        "Build the native core for the installed torch, if it is not there, and say "
        "where it is.",
        [
            _argument(
                "--clear",
                action="store_true",
                help="instead, remove all that was built for this user, for any torch",
            )
        ],
    ),
}


class _Parser(argparse.ArgumentParser):
    """Says of unknown options what was meant, and which options do not go together.

    command: the command whose arguments these are, if it is one.
    """

    command: Command | None = None

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            every = [name for each in self._actions for name in each.option_strings]
            meant = did_you_mean(unknown[0].partition("=")[0], every)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
        if self.command:
            self._check_together(self.command, found)
        return found, unknown

    def _check_together(self, command: Command, args: argparse.Namespace) -> None:
        """No option is ignored: those that do not go with the others are refused."""
        formats, given = command.formats, {n for n, v in vars(args).items() if v}
        for name in given.intersection(_SHARED):
            if name not in formats[args.format]:
                takes = " or ".join(k for k, taken in formats.items() if name in taken)
                self.error(f"{option(name)} is for --format {takes}, not {args.format}")
        for name in given & {"runs", "keep"}:
            if not args.run:
                self.error(f"{option(name)} is for programs: give --run, too")
        if {"full", "by"} <= given:
            self.error("--by prints one table, and --full all: give one of the two")


def parse(given: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """What the options say; and the program with its arguments, which are its own. The
    result has as `command` one of `COMMANDS`, or None for a program. Wrong arguments
    end this process with exit code 2."""
    parser = _make_parser()
    if given and given[0] in COMMANDS:
        return parser.parse_args(given), []
    ours, program = split(given)
    found = parser.parse_args(ours)
    if not program:
        parser.print_help(sys.stderr or sys.stdout)
        parser.exit(2)
    return found, program


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


def called_as() -> str:
    """The name by which the command was called, for messages."""
    is_script = not sys.argv[0].endswith("__main__.py")
    return "torchprof-hooks" if is_script else "python -m torchprof_hooks"


def _make_parser() -> _Parser:
    name = called_as()
    parser = _Parser(
        prog=name,
        usage="%(prog)s [options] (script.py | -m module | -c code | -) [arguments]\n"
        "       %(prog)s COMMAND ...",
        description="Run a program, and print when it ends where its time went; or "
        "look at files of profiles.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"torchprof-hooks {__version__}"
    )
    for flag in fields(Flags):
        if flag.name != "profile":
            _add_flag(parser, flag)
    commands = parser.add_subparsers(
        dest="command",
        metavar="COMMAND",
        title="commands (COMMAND --help tells more)",
        prog=name,
    )
    for command in COMMANDS:
        _add_command(commands, command)
    return parser


def _add_flag(parser: _Parser, flag: Field[Any]) -> None:
    """The option for a flag of programs. It is None if it is not given."""
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


def _add_command(parsers: argparse._SubParsersAction[_Parser], name: str) -> None:
    command = COMMANDS[name]
    parser = parsers.add_parser(
        name, help=command.does, description=command.description
    )
    parser.command = command
    for names, options in command.arguments:
        parser.add_argument(*names, **options)
    if command.formats:
        kinds = list(command.formats)
        parser.add_argument("--format", choices=kinds, default=kinds[0])
        meaning = "write to this file (default: standard output)"
        parser.add_argument("-o", "--output", type=Path, metavar="file", help=meaning)
    for each in command.shared:
        parser.add_argument(option(each), **_SHARED[each])
