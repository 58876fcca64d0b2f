"""Options of the commands for files: ``show``, ``compare``, ``merge``, ``ranks``."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from torchprof_hooks.profiles.names import GROUPINGS, SORT_KEYS
from torchprof_hooks.profiles.options import check_share
from torchprof_hooks.program.cli import FILE_TOOLS, called_as

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

#: The formats: a screen, the tables of a program, a page, and those for programs.
TEXT: Final = "text"
REPORT: Final = "report"
HTML: Final = "html"
JSON: Final = "json"
CSV: Final = "csv"
SPEEDSCOPE: Final = "speedscope"
#: Names of arguments that are no options.
ARGUMENTS: Final = ("command", "file", "files", "old", "new", "folder")

_FORMATS: Final = (TEXT, REPORT, HTML, JSON, CSV, SPEEDSCOPE)

#: How often ``compare --run`` runs each program: with some noise, 10 % in one module
#: are then found in 19 of 20 comparisons.
RUNS: Final = 7

_ROWS_OF_TABLES: Final = (
    "rows of each table (default: 40 modules, 20 functions, 10 call sites)"
)


def file_parser() -> argparse.ArgumentParser:
    """The parser of the commands. Its result has the command's name as `command`."""
    parser = argparse.ArgumentParser(prog=called_as())
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    _add_show(subparsers)
    _add_compare(subparsers)
    _add_merge(subparsers)
    _add_ranks(subparsers)
    return parser


def _add_show(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "show",
        help=FILE_TOOLS["show"],
        description="Print a profile: on one screen, or as tables if anything is said "
        "of these. Speedscope draws flame "
        "graphs of own times. A report is that of a whole program, as it "
        "was printed when it ended. A page (html) is for a browser.",
    )
    parser.add_argument("file", type=Path)
    _add_by(parser, "rows are one per module, class, function or call site")
    parser.add_argument("--format", choices=_FORMATS, default=TEXT)
    parser.add_argument(
        "--full", action="store_true", help="print the tables below the screen"
    )
    _add_output(parser)
    _add_max_rows(parser, _ROWS_OF_TABLES)
    parser.add_argument(
        "--sort-by",
        choices=SORT_KEYS,
        help="the column by which rows of a text table are chosen and sorted",
    )


def trouble_with_compare(args: argparse.Namespace) -> str:
    """As `trouble_with_show`, for ``compare``."""
    if args.max_rows and args.format != TEXT:
        return f"--max-rows is for tables, but --format {args.format} has all"
    for name in ("runs", "keep"):
        if getattr(args, name) and not args.run:
            return f"--{name} is for programs: give --run, too"
    if args.keep and args.keep.exists():
        return f"{args.keep} is there already: name a new folder to --keep profiles"
    return ""


def trouble_with_show(args: argparse.Namespace) -> str:
    """Says which options of ``show`` do not go together, and why; "" if all do."""
    kind = f"--format {args.format}"
    troubles = {
        f"--by is for rows, but {kind} has stacks": args.by
        and args.format == SPEEDSCOPE,
        f"--by is for rows, but {kind} has all of them": args.by
        and args.format in (REPORT, HTML),
        f"--max-rows is for tables, but {kind} has all there is": args.max_rows
        and args.format not in (TEXT, REPORT),
        f"--sort-by is for --format {TEXT}, not for {kind}": args.sort_by
        and args.format != TEXT,
    }
    if args.format == TEXT and not (args.full or args.by):
        for option in ("max_rows", "sort_by"):
            name = option.replace("_", "-")
            text = f"--{name} is for tables: give --full or --by, too"
            troubles[text] = getattr(args, option)
    return next((text for text, is_so in troubles.items() if is_so), "")


def _add_compare(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "compare",
        help=FILE_TOOLS["compare"],
        description="Compare the time of a call, row by row. The exit code is 1 if "
        "any became slower, by more than --fail-above and by more than runs of "
        "unchanged code differ. That takes a few runs: give two programs and --run, or "
        "two folders with a profile of each run.",
    )
    parser.add_argument("old", help="a profile, or a folder with a profile of each run")
    parser.add_argument("new", help="the same of the changed program")
    parser.add_argument(
        "--run",
        action="store_true",
        help="old and new are programs: run both in turns, each run in a process of "
        'its own; arguments in quotes: compare --run "old.py --fast" "new.py --fast"',
    )
    parser.add_argument(
        "-n",
        "--runs",
        type=_several,
        metavar="N",
        help=f"how often --run runs each of them (default: {RUNS}), after a first time "
        "that does not count",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="folder",
        help="keep the profiles of --run there, in the folders old and new",
    )
    _add_by(parser, "compare modules (the default), classes, functions or call sites")
    parser.add_argument(
        "--fail-above",
        type=_threshold,
        default="5%",
        metavar="SHARE",
        help='what a row may become slower: "5%%" (the default), "2.5%%" or 0.025',
    )
    parser.add_argument("--format", choices=(TEXT, HTML, JSON), default=TEXT)
    _add_output(parser)
    _add_max_rows(parser, _ROWS_OF_TABLES)


def _add_merge(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "merge",
        help=FILE_TOOLS["merge"],
        description="Add up profiles of several runs or ranks into one file.",
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="file")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="file")


def _add_ranks(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "ranks",
        help=FILE_TOOLS["ranks"],
        description="Put the ranks of the newest run in a folder side by side: which "
        "one the others wait for, in which module or code it spends that, the phases "
        "of each, and the rows in which they differ.",
    )
    parser.add_argument("folder", type=_folder)
    _add_by(parser, "rows are one per module (the default), class, function or call")
    kinds = (TEXT, HTML, JSON, CSV)
    parser.add_argument("--format", choices=kinds, default=TEXT)
    _add_output(parser)
    _add_max_rows(parser, "rows of each table of a text (default: 10)")


def _add_by(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument("--by", choices=GROUPINGS, help=meaning)


def _add_output(parser: argparse.ArgumentParser) -> None:
    meaning = "write to this file (default: standard output)"
    parser.add_argument("-o", "--output", type=Path, metavar="file", help=meaning)


def _add_max_rows(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument("--max-rows", type=_positive, metavar="N", help=meaning)


def _folder(written: str) -> Path:
    if not written:  # as of a shell variable that is not set; Path would make it "."
        raise argparse.ArgumentTypeError("give the folder with the profiles of ranks")
    return Path(written)


def _threshold(written: str) -> float:
    try:
        return check_share("it", written)
    except ValueError as error:
        message = str(error).removeprefix("it ")  # argparse names the option
        raise argparse.ArgumentTypeError(message) from None


def _several(written: str) -> int:
    found = _positive(written)
    if found < 2:
        raise argparse.ArgumentTypeError(
            "give 2 or more: one run does not tell how much runs differ"
        )
    return found


def _positive(written: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d{0,8}", written, re.ASCII):
        raise argparse.ArgumentTypeError(f"{written!r} is not a positive number")
    return int(written)
