"""What it takes to compare many ranks: ``python -m torchprof_hooks ranks`` over files
that are copies of real ones, with a rank each.

Targets: 1 024 files in less than 10 s and 500 MB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import results

SAMPLES = Path(__file__).parent.parent / "docs" / "samples" / "ranks"
COUNTS = (4, 64, 256, 1024)

#: Runs a command, and prints seconds of CPU and the most memory, in kilobytes.
MEASURED = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


def generate(folder: Path, count: int) -> int:
    """Writes the files of so many ranks; returns the bytes of one, on average."""
    real: list[dict[str, Any]] = [
        json.loads(path.read_text()) for path in sorted(SAMPLES.glob("*.json"))
    ]
    size = 0
    for rank in range(count):
        content = real[rank % len(real)]
        content["provenance"][0].update(rank=rank, world_size=count, pid=1000 + rank)
        text = json.dumps(content, separators=(",", ":"))
        (folder / f"profile-rank{rank}.json").write_text(text)
        size += len(text)
    return size // count


def compare(folder: Path) -> tuple[float, float, float]:
    """Seconds, those of CPU, and megabytes at most, of the command."""
    command = [sys.executable, "-m", "torchprof_hooks", "ranks", str(folder)]
    start = time.perf_counter()
    measured = subprocess.check_output([sys.executable, "-c", MEASURED, *command])
    cpu_s, most_kb = map(float, measured.split())
    return time.perf_counter() - start, cpu_s, most_kb / 1024


def main() -> None:
    rows: list[list[results.Cell]] = []
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as name:
            size = generate(Path(name), count)
            os.sync()
            seconds, cpu_s, most_mb = compare(Path(name))
            times = [f"{each:.2f}" for each in (seconds, cpu_s)]
            rows.append([count, size // 1000, *times, round(most_mb)])
    results.save(
        "ranks",
        [
            results.Table(
                "Comparing ranks",
                ["files", "kB each", "seconds", "of CPU", "MB at most"],
                rows,
                ["Files of the demo's ranks (40 steps), copied; time of the command."],
            )
        ],
    )


if __name__ == "__main__":
    main()
