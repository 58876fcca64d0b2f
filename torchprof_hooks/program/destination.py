"""The files, or streams, for the report and the profile of a program."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, TextIO

from torchprof_hooks.profiles.errors import FlagError
from torchprof_hooks.profiles.files.own_file import rank_path
from torchprof_hooks.profiles.files.writing import replaced_file
from torchprof_hooks.profiles.options import trouble_with_file
from torchprof_hooks.profiles.ranks.provenance import Provenance
from torchprof_hooks.program.flags import Flags

#: Destinations that are no files.
_STREAMS: Final = ("stderr", "stdout")


def settle(flags: Flags, spelled: Callable[[str], str]) -> Flags:
    """The same flags with absolute paths, which hold when the program changes its
    working directory. The program may run for days, so the files are checked now.

    spelled: gives the name of a flag as the user has written it, for errors.

    Raises:
        FlagError: a file cannot be written there.
    """
    found = {}
    for name in ("save", "html", "destination"):
        written = getattr(flags, name)
        if written and not (name == "destination" and written in _STREAMS):
            trouble = trouble_with_file(Path(written))
            if trouble:
                raise FlagError(f"{spelled(name)} {written}: {trouble}")
            found[name] = os.path.abspath(written)
    return replace(flags, **found)


def stream_of(destination: str) -> TextIO | None:
    """The stream that is the destination of a report; None if that is a file, or the
    stream is closed."""
    if destination not in _STREAMS:
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
    if destination in _STREAMS:
        stream = stream_of(destination)
        if stream is not None:
            with suppress(ValueError):  # the program has closed it
                print(report, file=stream, flush=True)
    else:
        path = Path(destination)
        with replaced_file(rank_path(path, provenance) if provenance else path) as file:
            file.write(report + "\n")
