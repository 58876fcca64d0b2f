"""Where reports and profiles of a program go."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def write_report(report: str, destination: str) -> None:
    """Print a report to "stderr", "stdout" or into a file, one for each rank of a
    distributed program.

    Raises:
        OSError: the file cannot be written.
    """
    if destination in ("stderr", "stdout"):
        stream = sys.stderr if destination == "stderr" else sys.stdout
        if stream is not None:
            print(report, file=stream, flush=True)
    else:
        rank_file(destination).write_text(report + "\n", encoding="utf-8")


def rank_file(name: str) -> Path:
    """The path of a file that each rank of a distributed program has for itself:
    ``profile-rank1.json`` for rank 1."""
    path = Path(name)
    rank = os.environ.get("RANK")
    if rank is None or os.environ.get("WORLD_SIZE", "1") == "1":
        return path
    return path.with_name(f"{path.stem}-rank{rank}{path.suffix}")
