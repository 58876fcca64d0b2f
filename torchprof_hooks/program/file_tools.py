"""The commands for files of profiles."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeVar

from torchprof_hooks.documents.build.compare import comparison_document
from torchprof_hooks.documents.build.exit_report import ExitLayout
from torchprof_hooks.documents.build.ranks import ranks_document
from torchprof_hooks.documents.build.rows import rows_table
from torchprof_hooks.documents.document import Document
from torchprof_hooks.documents.export.stacks import render_speedscope
from torchprof_hooks.documents.progress import with_progress
from torchprof_hooks.documents.render.csv import csv_of
from torchprof_hooks.documents.render.html import page_of
from torchprof_hooks.documents.render.json import json_of
from torchprof_hooks.documents.render.markdown import markdown_of
from torchprof_hooks.documents.render.terminal import WIDTH
from torchprof_hooks.documents.render.text import text_of
from torchprof_hooks.documents.render.units import best_time
from torchprof_hooks.documents.report import (
    Layout,
    page,
    program_text,
    report,
    rows_report,
    to_json,
    to_markdown,
)
from torchprof_hooks.documents.words import OF_FILES, plural
from torchprof_hooks.files.profile_file import read_runs
from torchprof_hooks.files.ranks import read_run
from torchprof_hooks.files.writing import replaced_file
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.compare import compare
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.program.arguments import RUNS

T = TypeVar("T")

#: Exit codes besides 0.
SLOWER: Final = 1
TROUBLE: Final = 2


class _ToolError(Exception):
    """A problem that the user can solve. It is printed in one line."""

    def __init__(self, message: str, code: int = TROUBLE) -> None:
        super().__init__(message)
        self.code = code


def run(args: argparse.Namespace) -> int:
    """Run the command in the arguments, and return the exit code. For a file that
    cannot be read or written, that is 2, with one line on standard error."""
    try:
        return _COMMANDS[args.command](args)
    except _ToolError as error:
        line = " ".join(str(error).splitlines())
        print(f"torchprof_hooks: {line}", file=sys.stderr)
        return error.code


def _show(args: argparse.Namespace) -> int:
    _put(_FORMATS[args.format](_read(Profile.load, args.file), args), args.output)
    return 0


def _text(profile: Profile, args: argparse.Namespace) -> str:
    """The screen, with tables below if anything is said of these; with ``--by``, one
    table."""
    rows, by = args.max_rows, args.sort_by
    if args.by:
        return rows_report(profile, args.by, width=_width(), max_rows=rows, sort_by=by)
    full = bool(args.full or rows or by)
    width = _width() if full else min(_width(), WIDTH)
    stream = sys.stdout if args.output is None else None
    layout = Layout(width=width, max_rows=rows, sort_by=by)
    return report(profile, layout, full=full, stream=stream, hints=OF_FILES)


def _report(profile: Profile, args: argparse.Namespace) -> str:
    """The tables of a whole program, as they were printed at its end."""
    if profile.program is None:
        raise _ToolError(f"{args.file} is not the profile of a whole program")
    rows, has_memory = args.max_rows or 20, profile.memory is not None
    layout = ExitLayout(rows, rows)
    return program_text(profile, layout, width=_width(), with_memory=has_memory)


def _compare(args: argparse.Namespace) -> int:
    if args.run:
        old, new = _run_in_turns(args)
    else:
        for path in (args.old, args.new):
            if path.partition(" ")[0].endswith(".py"):
                raise _ToolError(f"{path} is a program: give --run to run both")
        old, new = (_read(read_runs, Path(path)) for path in (args.old, args.new))
    try:
        found = compare(old, new, args.by or "module", args.fail_above)
    except ValueError as error:
        raise _ToolError(str(error)) from None
    is_text = args.format in ("text", "md")
    document = comparison_document(found, max_rows=args.max_rows, is_text=is_text)
    _put_document(document, args)
    return SLOWER if found.slower else 0


def _run_in_turns(args: argparse.Namespace) -> Sequence[Sequence[ProfileData]]:
    """The profiles of runs of the old, and of the new program."""
    from torchprof_hooks.program import paired_runs

    if args.keep and args.keep.exists():
        raise _ToolError(
            f"{args.keep} is there already: name a new folder to --keep profiles"
        )
    with TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        functions = args.by in ("function", "call")
        try:
            written = (args.old, args.new)
            programs = dict(
                zip(
                    paired_runs.SIDES, map(paired_runs.program_of, written), strict=True
                )
            )
            paired_runs.run_in_turns(
                programs, args.runs or RUNS, folder, functions=functions
            )
        except paired_runs.RunFailedError as error:
            print(error.printed, file=sys.stderr)
            raise _ToolError(str(error)) from None
        except paired_runs.StoppedError as error:
            raise _ToolError(str(error), 128 + error.number) from None
        except (OSError, ValueError) as error:
            raise _ToolError(str(error)) from None
        return [_read(read_runs, folder / side) for side in paired_runs.SIDES]


def _merge(args: argparse.Namespace) -> int:
    files = with_progress(args.files, "merging")
    merged = reduce(Profile.merge, (_read(Profile.load, file) for file in files))
    try:
        merged.save(args.output)
    except OSError as error:
        raise _ToolError(f"cannot write {args.output}: {error.strerror}") from None
    wall = best_time(merged.wall_ns)
    count, steps = plural(len(args.files), "profile"), plural(merged.steps, "step")
    _write(f"{args.output}: {count}, {steps}, {wall} wall")
    return 0


def _ranks(args: argparse.Namespace) -> int:
    ranks = _read(read_run, args.folder)
    if ranks.notes and args.format != "text":
        print("torchprof_hooks:", "; ".join(ranks.notes), file=sys.stderr)
    document = ranks_document(ranks, args.by or "module", args.max_rows)
    _put_document(document, args)
    return 0


def _put_document(document: Document, args: argparse.Namespace) -> None:
    """Write a document in the format of ``--format``."""
    if args.format == "text":
        # Rows of a comparison range from microseconds to seconds.
        unit = "auto_foreach" if document.kind == "comparison" else "auto"
        text = text_of(document, width=min(_width(), WIDTH), unit=unit)
    elif args.format == "csv":
        [table] = (b for b in document.blocks if getattr(b, "name", "") == "rows")
        text = csv_of(table)  # type: ignore[arg-type]
    else:
        renderers = {"html": page_of, "md": markdown_of, "json": json_of}
        text = renderers[args.format](document)
    _put(text, args.output)


def _read(load: Callable[[Path], T], path: Path) -> T:
    try:
        return load(path)
    except OSError as error:
        raise _ToolError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise _ToolError(str(error)) from None


def _width() -> int:
    """Characters in a line: the terminal's width; 120 without a terminal."""
    return shutil.get_terminal_size((120, 24)).columns


def _put(output: str, path: Path | None) -> None:
    """Write to the file, or without a path, to standard output."""
    if path is None:
        _write(output)
        return
    try:
        with replaced_file(path) as file:
            file.write(output + "\n")
    except OSError as error:
        raise _ToolError(f"cannot write {path}: {error.strerror}") from None


def _write(output: str) -> None:
    """Print. Does not fail at characters that cannot be encoded, nor if the reader of a
    pipe stops early (``| head``)."""
    encoding = sys.stdout.encoding or "utf-8"
    printable = output.encode(encoding, "backslashreplace").decode(encoding)
    try:
        print(printable, flush=True)
    except OSError as error:
        # Else, Python would flush once more at exit, and print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise _ToolError(f"cannot write the output: {error.strerror}") from None


#: What ``show`` makes of a profile, by `FORMATS`.
_FORMATS: Final[Mapping[str, Callable[[Profile, argparse.Namespace], str]]] = {
    "text": _text,
    "report": _report,
    "html": lambda profile, _: page(profile),
    "md": lambda profile, _: to_markdown(profile, OF_FILES),
    "json": lambda profile, args: to_json(profile, args.by, OF_FILES),
    "csv": lambda profile, args: csv_of(rows_table(profile, args.by or "module")),
    "speedscope": lambda profile, _: render_speedscope(profile),
}
_COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "show": _show,
    "compare": _compare,
    "merge": _merge,
    "ranks": _ranks,
}
