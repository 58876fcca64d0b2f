"""What is printed when a program ends, and where."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from torchprof_hooks.profiles.files.own_file import rank_path
from torchprof_hooks.profiles.files.writing import replaced_file
from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.profiles.ranks.provenance import Provenance
from torchprof_hooks.program.flags import STREAMS, Flags
from torchprof_hooks.reports.program.report import Layout, program_report
from torchprof_hooks.reports.screen.screen import LINES, program_screen
from torchprof_hooks.reports.screen.terminal import takes_colour, width_of


def exit_report(
    program: ProgramProfile, flags: Flags, closing: Callable[[], str]
) -> str:
    """The first screen, and below it what the flags ask for.

    closing: makes the last line, when all others are made.
    """
    parts = list(_parts(program, flags))
    return "\n\n".join(parts) + ("\n" if len(parts) == 1 else "\n\n") + closing()


def _parts(program: ProgramProfile, flags: Flags) -> Iterator[str]:
    stream = _stream_of(flags.destination)
    yield program_screen(
        program,
        width=width_of(stream),
        lines=LINES - 1,  # one is for the closing
        colour=takes_colour(stream),
    )
    if flags.wants_tables:
        yield program_report(program, _layout(flags))


def _layout(flags: Flags) -> Layout:
    return Layout(
        n_ops=flags.n_ops,
        n_apply=flags.n_apply,
        width=flags.output_line_width,
        every_pass=flags.profile_optimizer,
        with_memory=flags.profile_memory,
    )


def _stream_of(destination: str) -> TextIO | None:
    """The stream that is the destination of a report; None if that is a file, or the
    stream is closed."""
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
