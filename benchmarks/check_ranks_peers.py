"""What others say about the ranks of a run, one of which is slow on purpose:
TraceML, torch.profiler, HolisticTraceAnalysis with the traces of torch.profiler, and
this package. Each measures a run of its own of the same program, `planted_ranks.py`.

    python benchmarks/check_ranks_peers.py --peers /path/to/their/python

The others are not installed with this package: ``pip install HolisticTraceAnalysis
traceml-ai`` in an environment that has torch. What is not there is not asked.
With ``--planted``, the other rows of the table stay as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import results

from torchprof_hooks import load_ranks
from torchprof_hooks.documents.build.ranks import ranks_document
from torchprof_hooks.documents.document import Answers

HERE: Final = Path(__file__).parent
PROGRAM: Final = str(HERE / "planted_ranks.py")
PROCESSES: Final = 4
LONGEST_S: Final = 240

PLANTED: Final = {
    "forward": "in a module's forward",
    "backward": "in a module's backward",
    "data": "in loading data",
    "own code": "in the program's own code",
    "batch": "with twice the batch",
    "noise": "nobody; all differ by 10 %",
}

#: Asks HolisticTraceAnalysis; the folder is its argument.
HTA: Final = """
import logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
folder, size = sys.argv[1], int(sys.argv[2])
files = {rank: f"{folder}/trace-rank{rank}.json" for rank in range(size)}
try:
    print(TraceAnalysis(trace_files=files).get_potential_stragglers(num_candidates=1))
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


def run(command: list[str]) -> str:
    """What a command prints; nothing that it has started is left.

    Raises:
        subprocess.SubprocessError: it fails, or takes too long.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}
    with subprocess.Popen(
        command,
        text=True,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as started:
        try:
            printed, _ = started.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            raise
    if started.returncode:
        raise subprocess.CalledProcessError(started.returncode, command, printed)
    return printed


def train(planted: str, tool: str, folder: Path) -> None:
    """The run that a tool measures from inside."""
    launcher = ["-m", "torch.distributed.run", "--standalone"]
    size = ["--nproc-per-node", str(PROCESSES)]
    asked = ["--planted", planted, "--tool", tool, "--folder", str(folder)]
    run([sys.executable, *launcher, *size, PROGRAM, *asked])


def ours(planted: str, folder: Path) -> str:
    """The first two sentences of the verdict."""
    train(planted, "torchprof_hooks", folder)
    blocks = ranks_document(load_ranks(folder)).blocks
    [answer] = next(b for b in blocks if isinstance(b, Answers)).answers
    said = f"{answer.answer}. {answer.evidence}".split(". ")
    return " ".join(said[:2] if said[0].startswith("Rank") else said[:1])


def torch_profiler(planted: str, folder: Path) -> str:
    """It knows one process: the row with most own time, of the first and the last."""
    train(planted, "torch.profiler", folder)
    said = []
    for rank in (0, PROCESSES - 1):
        [name, took_ms], *_ = json.loads((folder / f"rows-rank{rank}.json").read_text())
        said.append(f"rank {rank}: {name} {took_ms:.0f} ms")
    return "; ".join(said)


def hta(python: str, folder: Path) -> str:
    """Its straggler, from the traces that torch.profiler left in the folder."""
    said = run([python, "-c", HTA, str(folder), str(PROCESSES)]).strip()
    return said.rpartition("\n")[2][:100]


def traceml(python: str, planted: str, folder: Path) -> str:
    """The verdict of its summary, and why."""
    command = [python, str(Path(python).with_name("traceml")), "run", PROGRAM]
    size = ["--nproc-per-node", str(PROCESSES)]
    logs = ["--logs-dir", str(folder), "--run-name", "planted"]
    asked = ["--args", "--planted", planted, "--tool", "traceml"]
    run([*command, *size, *logs, *asked])
    text = (folder / "planted" / "final_summary.txt").read_text()
    lines = [line.strip(" |") for line in text.splitlines()]
    wanted = ("Verdict:", "Why:")
    return " ".join(line for line in lines if line.startswith(wanted))


def asked(tool: Callable[..., str], *arguments: Any) -> str:
    """What a tool says, or how it failed; without what would break a table."""
    try:
        said = tool(*arguments)
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "output", None) or str(error)
        said = f"failed: {output.strip().rpartition(chr(10))[2]}"
    return " ".join(said.replace("|", "/").split())


def row_of(planted: str, python: str) -> list[results.Cell]:
    """What each says."""
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / tool for tool in ("ours", "torch", "traceml")]
        for folder in folders:
            folder.mkdir()
        return [
            PLANTED[planted],
            asked(ours, planted, folders[0]),
            asked(traceml, python, planted, folders[2]),
            asked(torch_profiler, planted, folders[1]),
            asked(hta, python, folders[1]),
        ]


def note_on(python: str) -> str:
    """What was run."""
    versions = json.loads(run([python, "-m", "pip", "list", "--format", "json"]))
    found = {each["name"].lower(): each["version"] for each in versions}
    names = ("torch", "traceml-ai", "HolisticTraceAnalysis")
    used = ", ".join(f"{name} {found.get(name.lower(), 'missing')}" for name in names)
    return (
        f"{PROCESSES} processes with gloo, 40 steps; the last one sleeps 60 ms a step, "
        f"or takes that longer; {used}."
    )


def known_rows(note: str) -> dict[results.Cell, Sequence[results.Cell]]:
    """What was said before, with the same versions, by what was planted."""
    with suppress(FileNotFoundError):
        [table] = results.load("ranks_peers")["tables"]
        if list(table.notes) == [note]:
            return {row[0]: row for row in table.rows}
    return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default=sys.executable, help="their Python")
    parser.add_argument("--planted", nargs="+", default=list(PLANTED))
    args = parser.parse_args()
    note = note_on(args.peers)
    rows = known_rows(note)
    for planted in args.planted:
        rows[PLANTED[planted]] = row_of(planted, args.peers)
        headers = ["slow", "torchprof_hooks", "TraceML", "torch.profiler", "HTA"]
        shown = [rows[slow] for slow in PLANTED.values() if slow in rows]
        results.save("ranks_peers", [results.Table("", headers, shown, [note])])


if __name__ == "__main__":
    main()
