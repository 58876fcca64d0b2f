"""The command ``merge-traces``: the traces of all ranks for a step as one."""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from torchprof_hooks.profiles.files.writing import replaced_file
from torchprof_hooks.reports.chrome_trace.merge import merged_traces
from torchprof_hooks.reports.table import plural

_NAME: Final = re.compile(r"timeline-(\d+)-rank(\d+)(?:-(\d+))?\.json(?:\.gz)?")
_TROUBLE: Final = 2

#: Traces by step and rank; of several for the same step and rank, the newest.
_Found = dict[int, dict[int, Path]]


def main(arguments: Sequence[str]) -> int:
    """Run the command. Returns the exit code: 2, after a line on standard error, if
    there is nothing to merge, or a file cannot be read or written."""
    args = _parser().parse_args(arguments)
    folder = Path(args.folder)
    try:
        found = _found(folder)
        step = _chosen(found, args.step, folder)
        traces = {rank: _read(path) for rank, path in found[step].items()}
        output = Path(args.output or folder / f"timeline-{step}-all-ranks.json")
        with replaced_file(output) as file:
            json.dump(merged_traces(traces), file)
    except (OSError, ValueError, EOFError) as error:
        print(f"torchprof_hooks: {error}", file=sys.stderr)
        return _TROUBLE
    most = max(len(ranks) for ranks in found.values())
    missing = f", of {most} in other steps" if len(traces) < most else ""
    counted = plural(len(traces), "rank")
    print(f"{output}: step {step} of {counted}{missing}; for https://ui.perfetto.dev")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torchprof_hooks merge-traces",
        description="Put the Chrome traces of all ranks for a step on one time axis.",
    )
    parser.add_argument("folder", help="with timeline-STEP-rankN.json of ProfilerHook")
    default = "default: the last that most ranks have"
    parser.add_argument("--step", type=int, help=default)
    parser.add_argument("-o", "--output", metavar="FILE", help="where the trace goes")
    return parser


def _found(folder: Path) -> _Found:
    found: _Found = {}
    numbers: dict[Path, int] = {}
    for path in sorted(folder.iterdir()):
        name = _NAME.fullmatch(path.name)
        if name is None:
            continue
        step, rank, numbers[path] = int(name[1]), int(name[2]), int(name[3] or 1)
        ranks = found.setdefault(step, {})
        if rank not in ranks or numbers[ranks[rank]] < numbers[path]:
            ranks[rank] = path
    return found


def _chosen(found: _Found, step: int | None, folder: Path) -> int:
    """The step that is asked for, or the last of those that most ranks have."""
    if not found:
        raise ValueError(f"{folder} has no traces of ranks: timeline-STEP-rankN.json")
    if step is None:
        return max(found, key=lambda each: (len(found[each]), each))
    if step not in found:
        steps = ", ".join(map(str, sorted(found)))
        raise ValueError(f"{folder} has no trace of step {step}; there are {steps}")
    return step


def _read(path: Path) -> Any:
    try:
        content = path.read_bytes()
        text = gzip.decompress(content) if path.suffix == ".gz" else content
        return json.loads(text)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
