"""Whether the verdict on ranks is right: what the tests plant into four processes that
train together, 20 times, with the chance that a busy machine adds.

Target: the slow rank, row and phase in 20 of 20 runs, and nobody where nobody is slow.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from importlib import import_module
from pathlib import Path

import results

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.distributed.processes import run_processes
from tests.distributed.test_ranks import CASES, all_of_them
from torchprof_hooks import load_ranks

RUNS = 20
SIZE = 4


def told(folder: Path) -> tuple[int | None, str, str]:
    """Rank, class or name of the row, and phase of the verdict."""
    verdict = load_ranks(folder).verdict
    reason = verdict.reason
    if reason is None:
        return verdict.rank, "", ""
    row = "Head" if reason.row.startswith("Distributed") else reason.row
    return verdict.rank, row, reason.phase or ""


def main() -> None:
    import_module("torch._dynamo")  # takes seconds: not in each process
    counts = {name: Counter[str]() for name in CASES}
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            for name in CASES:
                (Path(folder) / name).mkdir()
            run_processes(all_of_them(Path(folder), SIZE), SIZE)
            for name, expected in CASES.items():
                rank, row, phase = told(Path(folder) / name)
                if expected is None:
                    said = "right" if rank is None else "wrong rank"
                elif rank is None:
                    said = "nobody"
                elif rank != SIZE - 1:
                    said = "wrong rank"
                else:
                    said = "right" if (row, phase) == expected else "other row"
                counts[name][said] += 1
    columns = ["right", "nobody", "other row", "wrong rank"]
    rows: list[list[results.Cell]] = [
        [name, *(found[c] for c in columns)] for name, found in counts.items()
    ]
    note = f"{RUNS} runs of {SIZE} processes; what is planted sleeps 60 ms a step."
    table = results.Table("Verdicts", ["planted", *columns], rows, [note])
    results.save("ranks_planted", [table])


if __name__ == "__main__":
    main()
