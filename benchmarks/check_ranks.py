"""Whether the verdict on ranks is right: what the tests plant into processes that train
together, 20 times, with the chance that a busy machine adds.

Target: the slow rank, row and phase in 20 of 20 runs, and nobody where nobody is slow.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from importlib import import_module
from pathlib import Path

import results

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.ranks.processes import run_processes
from tests.ranks.test_ranks import (
    CASES,
    LONGEST_S,
    SLEEP_S,
    all_of_them,
    steps_of,
)
from torchprof_hooks import load_ranks

COLUMNS = ("right", "nobody", "other row", "wrong rank")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="default: %(default)s")
    parser.add_argument(
        "--processes",
        type=int,
        nargs="+",
        default=[2, 4, 8],
        help="that train together (default: 2 4 8)",
    )
    return parser.parse_args()


def told(folder: Path) -> tuple[int | None, str, str]:
    """Rank, class or name of the row, and phase of the verdict."""
    verdict = load_ranks(folder).verdict
    reason = verdict.reason
    if reason is None:
        return verdict.rank, "", ""
    row = "Head" if reason.row.startswith("Distributed") else reason.row
    return verdict.rank, row, reason.phase


def judged(folder: Path, name: str, slow: int) -> str:
    """One of `COLUMNS`."""
    rank, row, phase = told(folder)
    expected = CASES[name]
    if expected is None:
        return "right" if rank is None else "wrong rank"
    if rank is None:
        return "nobody"
    if rank != slow:
        return "wrong rank"
    return "right" if (row, phase) == expected else "other row"


def table_of(size: int, runs: int) -> results.Table:
    """How often what is said."""
    counts = {name: Counter[str]() for name in CASES}
    for run in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            for name in CASES:
                (Path(folder) / name).mkdir()
            run_processes(all_of_them(Path(folder), size), size, LONGEST_S)
            for name, found in counts.items():
                said = judged(Path(folder) / name, name, size - 1)
                found[said] += 1
                if said != "right":
                    verdict = load_ranks(Path(folder) / name).verdict
                    print(f"{size} processes, run {run}, {name}: {said}: {verdict}")
    rows: list[list[results.Cell]] = [
        [name, *(found[c] for c in COLUMNS)] for name, found in counts.items()
    ]
    note = (
        f"{runs} runs of {steps_of(size)} steps; what is planted sleeps "
        f"{1000 * SLEEP_S:.0f} ms in each."
    )
    title = f"Verdicts on {size} processes"
    return results.Table(title, ["planted", *COLUMNS], rows, [note])


def main() -> None:
    args = parse_args()
    import_module("torch._dynamo")  # takes seconds: not in each process
    for size in args.processes:
        keep(table_of(size, args.runs))


def keep(table: results.Table) -> None:
    """Beside those of other numbers of processes that were measured before."""
    others = results.load("ranks_planted")["tables"]
    tables = {each.title: each for each in [*others, table]}
    results.save("ranks_planted", [tables[title] for title in sorted(tables)])


if __name__ == "__main__":
    main()
