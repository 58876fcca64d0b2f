"""Makes and prints the report at the end of a program."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from torchprof_hooks.documents.build.exit_report import ReportLayout, program_text
from torchprof_hooks.documents.render.terminal import width_of
from torchprof_hooks.documents.report import LINES, Layout, report
from torchprof_hooks.files.own_file import rank_path
from torchprof_hooks.files.writing import replaced_file
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.provenance import Provenance
from torchprof_hooks.program.flags import STREAMS, Flags


def exit_report(
    program: ProfileData,
    flags: Flags,
    with_end: Callable[[ProfileData], ProfileData],
) -> str:
    """The first screen, with the tables below it if the flags ask for them.

    with_end: adds to a profile the time that the report has taken so far. The screen,
        which has that time, is made last.
    """
    tables = [program_text(program, _layout(flags))] * flags.wants_tables
    stream, program = _stream_of(flags.destination), with_end(program)
    screen = report(
        program.loop if flags.ignore_first_call else program,
        Layout(width=width_of(stream)),
        stream=stream,
        lines=LINES,
        more="--html FILE" if flags.wants_tables else "--full, --html FILE",
        tips=not flags.wants_tables,
    )
    return "\n\n".join([screen, *tables])


def _layout(flags: Flags) -> ReportLayout:
    return ReportLayout(
        n_ops=flags.n_ops,
        n_apply=flags.n_apply,
        width=flags.output_line_width,
        every_pass=flags.profile_optimizer,
        with_memory=flags.profile_memory,
        ignore_first_call=flags.ignore_first_call,
        include_overhead=False,
    )


def _stream_of(destination: str) -> TextIO | None:
    """The stream of a destination; None if that is a file, or the stream is closed."""
    if destination not in STREAMS:
        return None
    return sys.stderr if destination == "stderr" else sys.stdout


def write_report(
    report: str, destination: str, provenance: Provenance | None = None
) -> None:
    """Print a report to "stderr", "stdout" or into a file, one for each rank of a
    distributed program.

    Raises:
        OSError: the file cannot be written.
    """
    if destination in STREAMS:
        stream = _stream_of(destination)
        if stream is not None:
            with suppress(ValueError):  # the program has closed it
                print(report, file=stream, flush=True)
    else:
        path = Path(destination)
        with replaced_file(rank_path(path, provenance) if provenance else path) as file:
            file.write(report + "\n")
