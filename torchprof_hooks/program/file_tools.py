"""The commands for files of profiles."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial, reduce
from pathlib import Path
from typing import Final, TypeVar

from torchprof_hooks.profiles.compare import compare
from torchprof_hooks.profiles.errors import ProfileFileError
from torchprof_hooks.profiles.files import profile_file
from torchprof_hooks.profiles.files.writing import replaced_file
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.profiles.ranks.ranks import read_run
from torchprof_hooks.program.file_options import (
    HTML,
    REPORT,
    TEXT,
    file_parser,
    trouble_with_show,
)
from torchprof_hooks.reports import comparison, row_table, text
from torchprof_hooks.reports.export.rows import ROW_FORMATS
from torchprof_hooks.reports.export.stacks import STACK_FORMATS
from torchprof_hooks.reports.ranks.export import rendered
from torchprof_hooks.reports.screen.progress import with_progress
from torchprof_hooks.reports.screen.screen import program_screen
from torchprof_hooks.reports.screen.terminal import WIDTH, takes_colour
from torchprof_hooks.reports.table import plural
from torchprof_hooks.reports.units import best_time

T = TypeVar("T")

#: Exit codes besides 0.
SLOWER: Final = 1
TROUBLE: Final = 2

#: How many processes read files of ranks at once.
_MOST_PROCESSES: Final = 8

#: The most characters of a message: some quote what a damaged file has for a number.
_LONGEST_MESSAGE: Final = 300


class _ToolError(Exception):
    """A problem that the user can solve, in one line."""


def main(argv: Sequence[str]) -> int:
    """Do what the arguments ask for and return the exit code. A file that cannot be
    read or written is one line on standard error, and exit code 2."""
    args = file_parser().parse_args(argv)
    try:
        return _COMMANDS[args.command](args)
    except _ToolError as error:
        line = " ".join(str(error).splitlines())
        if len(line) > _LONGEST_MESSAGE:
            line = line[:_LONGEST_MESSAGE] + "..."
        print(f"torchprof_hooks: {line}", file=sys.stderr)
        return TROUBLE


def _show(args: argparse.Namespace) -> int:
    trouble = trouble_with_show(args)
    if trouble:
        raise _ToolError(trouble)
    if args.format == REPORT:
        _put(_report(args), args.output)
    elif args.format == HTML:
        _put(_page(args), args.output)
    elif args.format == TEXT and not args.by:
        _put(_text(args), args.output)
    else:
        profile = _load(args.file)
        shown = profile if args.raw else profile.corrected()
        _put(_rendered(shown, args), args.output)
    return 0


def _page(args: argparse.Namespace) -> str:
    """The page of a whole program, if the file has one, since it tells more."""
    from torchprof_hooks.reports.html.page import profile_page, program_page

    if args.raw or not _read(profile_file.is_program, args.file):
        return profile_page(_load(args.file), corrected=not args.raw)
    return program_page(_read(ProgramProfile.load, args.file))


def _report(args: argparse.Namespace) -> str:
    from torchprof_hooks.reports.program.report import Layout, program_report

    program = _read(ProgramProfile.load, args.file)
    layout = Layout(with_memory=program.whole.memory is not None)
    if args.max_rows:
        layout = layout._replace(n_ops=args.max_rows, n_apply=args.max_rows)
    return program_report(program, layout)


def _rendered(profile: Profile, args: argparse.Namespace) -> str:
    if args.format in STACK_FORMATS:
        return STACK_FORMATS[args.format](profile)
    if args.format in ROW_FORMATS:
        return ROW_FORMATS[args.format](profile, args.by or "module")
    return row_table.render(
        profile,
        args.by,
        width=_width(),
        max_rows=args.max_rows,
        sort_by=args.sort_by,
    )


def _text(args: argparse.Namespace) -> str:
    """The screen, or tables; those of a whole program, if the file has one."""
    stream = sys.stdout if args.output is None else None
    has_layout = args.max_rows or args.sort_by
    program = None if args.raw or has_layout else _program(args.file)
    if program is None:
        layout = text.TableLayout(
            width=_width() if args.full or has_layout else min(_width(), WIDTH),
            max_rows=args.max_rows,
            sort_by=args.sort_by,
        )
        return text.report(
            _load(args.file),
            layout,
            full=args.full,
            corrected=not args.raw,
            stream=stream,
        )
    colour, width = takes_colour(stream), min(_width(), WIDTH)
    screen = program_screen(program, width=width, colour=colour)
    return f"{screen}\n\n{_report(args)}" if args.full else screen


def _program(path: Path) -> ProgramProfile | None:
    """The program of a file. None if the file has only a profile; also if all but the
    profile is damaged: the profile can still be shown."""
    if _read(profile_file.is_program, path):
        with suppress(ProfileFileError):
            return ProgramProfile.load(path)
    return None


def _compare(args: argparse.Namespace) -> int:
    if args.max_rows and args.format == HTML:
        raise _ToolError("--max-rows is for tables, but a page has all there is")
    old, new = _load(args.old), _load(args.new)
    found = compare(old, new, args.by or "module", args.fail_above)
    if args.format == HTML:
        from torchprof_hooks.reports.html.comparison import comparison_page

        _put(comparison_page(found), args.output)
    else:
        table = comparison.render(found, width=_width(), max_rows=args.max_rows or 40)
        _put(table, args.output)
    return SLOWER if found.slower else 0


def _merge(args: argparse.Namespace) -> int:
    files = with_progress(args.files, "merging")
    merged = reduce(Profile.merge, map(_load, files))
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


def _ranks(args: argparse.Namespace) -> int:
    processes = min(os.cpu_count() or 1, _MOST_PROCESSES)
    ranks = _read(partial(read_run, processes=processes), args.folder)
    width = min(_width(), WIDTH)
    if ranks.notes and args.format != TEXT:
        print("torchprof_hooks:", "; ".join(ranks.notes), file=sys.stderr)
    _put(rendered(ranks, args.format, args.by, args.max_rows, width), args.output)
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
    """Characters in a line: those of the terminal, or 120 without one."""
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
    """Print, also if some characters cannot be encoded, or if the reader of a pipe
    stops early (``| head``)."""
    encoding = sys.stdout.encoding or "utf-8"
    printable = output.encode(encoding, "backslashreplace").decode(encoding)
    try:
        print(printable, flush=True)
    except OSError as error:
        # Python would flush once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise _ToolError(f"cannot write the output: {error.strerror}") from None


_COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "show": _show,
    "compare": _compare,
    "merge": _merge,
    "ranks": _ranks,
}
