"""The commands for files of profiles: ``show``, ``compare`` and ``merge``."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from torchprof_hooks.profiles.compare import compare
from torchprof_hooks.profiles.files import profile_file
from torchprof_hooks.profiles.files.writing import replaced_file
from torchprof_hooks.profiles.names import GROUPINGS, SORT_KEYS, Grouping
from torchprof_hooks.profiles.options import check_share
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.reports import comparison, row_table, text
from torchprof_hooks.reports.export.rows import render_csv, render_json
from torchprof_hooks.reports.export.stacks import render_collapsed, render_speedscope
from torchprof_hooks.reports.table import plural
from torchprof_hooks.reports.units import best_time

T = TypeVar("T")

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

#: Exit codes besides 0.
SLOWER: Final = 1
TROUBLE: Final = 2

#: The format that is a program's report, and the one that is a page.
_REPORT: Final = "report"
_HTML: Final = "html"

_ROW_FORMATS: Final[Mapping[str, Callable[[Profile, Grouping], str]]] = {
    "json": render_json,
    "csv": render_csv,
}
_STACK_FORMATS: Final[Mapping[str, Callable[[Profile], str]]] = {
    "speedscope": render_speedscope,
    "collapsed": render_collapsed,
}

#: Characters of a message: some quote what a damaged file has in place of a number.
_LONGEST_MESSAGE: Final = 300


class _ToolError(Exception):
    """A problem that the user can solve, in one line."""


def main(argv: Sequence[str]) -> int:
    """The three commands by themselves; returns the exit code."""
    parser = argparse.ArgumentParser(prog="torchprof_hooks")
    add_parsers(parser.add_subparsers(required=True, metavar="command"))
    return run(parser.parse_args(argv))


def run(args: argparse.Namespace) -> int:
    """Do what was asked for and return the exit code. A file that cannot be read or
    written is one line on standard error, and exit code 2."""
    try:
        code: int = args.command(args)
    except _ToolError as error:
        line = " ".join(str(error).splitlines())
        if len(line) > _LONGEST_MESSAGE:
            line = line[:_LONGEST_MESSAGE] + "..."
        print(f"torchprof_hooks: {line}", file=sys.stderr)
        return TROUBLE
    return code


def add_parsers(subparsers: Subparsers) -> None:
    """Add the commands. What is parsed is for `run`."""
    _add_show(subparsers)
    _add_compare(subparsers)
    _add_merge(subparsers)


def _add_show(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "show",
        help="print a profile, or turn it into another format",
        description="Print a profile. Stacks (speedscope, collapsed) are for flame "
        "graphs: own times in nanoseconds. A report is that of a whole program, as it "
        "was printed when it ended. A page (html) is for a browser.",
    )
    parser.add_argument("file", type=Path)
    _add_by(parser, "rows are one per module, class, function or call site")
    formats = ("text", _REPORT, _HTML, *_ROW_FORMATS, *_STACK_FORMATS)
    parser.add_argument("--format", choices=formats, default="text")
    _add_output(parser)
    parser.add_argument(
        "--raw",
        action="store_true",
        help="times as they were measured, with what measuring took of them",
    )
    _add_max_rows(parser)
    parser.add_argument(
        "--sort-by",
        choices=SORT_KEYS,
        help="the column by which rows of a text table are chosen and sorted",
    )
    parser.set_defaults(command=_show)


def _add_compare(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "compare",
        help="what became slower between two profiles",
        description="Compare the mean time of a call, row by row. The exit code is 1 "
        "if any became slower, by more than --fail-above and by more than chance "
        "explains. Runs differ by more than what is seen within each: merge a few of "
        "them on either side, and compare these.",
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    _add_by(parser, "compare modules (the default), classes, functions or call sites")
    parser.add_argument(
        "--fail-above",
        type=_threshold,
        default="5%",
        metavar="SHARE",
        help='what a row may become slower: "5%%" (the default), "2.5%%" or 0.025',
    )
    parser.add_argument("--format", choices=("text", _HTML), default="text")
    _add_output(parser)
    _add_max_rows(parser)
    parser.set_defaults(command=_compare)


def _add_merge(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "merge",
        help="add profiles up, of several runs or ranks",
        description="Add up profiles of several runs or ranks into one file.",
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="file")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="file")
    parser.set_defaults(command=_merge)


def _add_by(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument("--by", choices=GROUPINGS, help=meaning)


def _add_output(parser: argparse.ArgumentParser) -> None:
    meaning = "write to this file (default: standard output)"
    parser.add_argument("-o", "--output", type=Path, metavar="file", help=meaning)


def _add_max_rows(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-rows",
        type=_positive,
        metavar="N",
        help="rows of each table (default: 40 modules, 20 functions, 10 call sites)",
    )


def _threshold(written: str) -> float:
    try:
        return check_share("it", written)
    except ValueError as error:
        message = str(error).removeprefix("it ")  # argparse has named the option
        raise argparse.ArgumentTypeError(message) from None


def _positive(written: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d{0,8}", written, re.ASCII):
        raise argparse.ArgumentTypeError(f"{written!r} is not a positive number")
    return int(written)


def _show(args: argparse.Namespace) -> int:
    if args.by and args.format in _STACK_FORMATS:
        raise _ToolError(f"--by is for rows, but --format {args.format} has stacks")
    if args.by and args.format in (_REPORT, _HTML):
        raise _ToolError(
            f"--by is for rows, but --format {args.format} has all of them"
        )
    if args.format == _REPORT:
        if args.raw:
            raise _ToolError("--raw is not for --format report, which has estimates")
        _put(_report(args), args.output)
    elif args.format == _HTML:
        _put(_page(args), args.output)
    else:
        profile = _load(args.file)
        shown = profile if args.raw else profile.corrected()
        _put(_rendered(shown, args), args.output)
    return 0


def _page(args: argparse.Namespace) -> str:
    """Of a program, if the file has one: that tells more."""
    from torchprof_hooks.profiles.program.program_profile import ProgramProfile
    from torchprof_hooks.reports.html.page import profile_page, program_page

    if args.raw or not _read(profile_file.is_program, args.file):
        return profile_page(_load(args.file), corrected=not args.raw)
    return program_page(_read(ProgramProfile.load, args.file))


def _report(args: argparse.Namespace) -> str:
    from torchprof_hooks.profiles.program.program_profile import ProgramProfile
    from torchprof_hooks.reports.program.report import Layout, program_report

    program = _read(ProgramProfile.load, args.file)
    with_memory = program.replay is not None or bool(program.not_replayed)
    layout = Layout(with_memory=with_memory)
    if args.max_rows:
        layout = layout._replace(n_ops=args.max_rows, n_apply=args.max_rows)
    return program_report(program, layout)


def _rendered(profile: Profile, args: argparse.Namespace) -> str:
    if args.format in _STACK_FORMATS:
        return _STACK_FORMATS[args.format](profile)
    if args.format in _ROW_FORMATS:
        return _ROW_FORMATS[args.format](profile, args.by or "module")
    render = partial(row_table.render, by=args.by) if args.by else text.render
    return render(profile, width=_width(), max_rows=args.max_rows, sort_by=args.sort_by)


def _compare(args: argparse.Namespace) -> int:
    old, new = _load(args.old), _load(args.new)
    found = compare(old, new, args.by or "module", args.fail_above)
    if args.format == _HTML:
        from torchprof_hooks.reports.html.comparison import comparison_page

        _put(comparison_page(found), args.output)
    else:
        table = comparison.render(found, width=_width(), max_rows=args.max_rows or 40)
        _put(table, args.output)
    return SLOWER if found.slower else 0


def _merge(args: argparse.Namespace) -> int:
    merged = reduce(Profile.merge, map(_load, args.files))
    try:
        profile_file.check(merged)
        merged.save(args.output)
    except ValueError as error:
        raise _ToolError(f"the sum is more than a file can have: {error}") from None
    except OSError as error:
        raise _ToolError(f"cannot write {args.output}: {error.strerror}") from None
    wall = best_time(merged.wall_ns)
    count, steps = plural(len(args.files), "profile"), plural(merged.steps, "step")
    _write(f"{args.output}: {count}, {steps}, {wall} wall")
    return 0


def _load(path: Path) -> Profile:
    return _read(Profile.load, path)


def _read(load: Callable[[Path], T], path: Path) -> T:
    try:
        return load(path)
    except OSError as error:
        raise _ToolError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise _ToolError(str(error)) from None


def _width() -> int:
    """Characters in a line: of the terminal, if it is one."""
    return shutil.get_terminal_size((120, 24)).columns


def _put(output: str, path: Path | None) -> None:
    """Print, or write to a file."""
    if path is None:
        _write(output)
        return
    try:
        with replaced_file(path) as file:
            file.write(output + "\n")
    except OSError as error:
        raise _ToolError(f"cannot write {path}: {error.strerror}") from None


def _write(output: str) -> None:
    """Print, also where not every character can be, or where nobody reads to the end
    (``| head``)."""
    encoding = sys.stdout.encoding or "utf-8"
    printable = output.encode(encoding, "backslashreplace").decode(encoding)
    try:
        print(printable, flush=True)
    except OSError as error:
        # Python would try once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise _ToolError(f"cannot write the output: {error.strerror}") from None
