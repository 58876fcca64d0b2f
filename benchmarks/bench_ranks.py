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

HERE = Path(__file__).parent
COUNTS = (4, 64, 256, 1024)

#: What each of the real ranks runs.
TRAIN = """
import models, torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
distributed.init_process_group("gloo")
model = DistributedDataParallel(models.GPT2())
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
tokens, targets = torch.randint(0, 256, (2, 4, 32))
for _ in range(100):
    optimizer.zero_grad()
    logits = model(tokens).flatten(0, 1)
    nn.functional.cross_entropy(logits, targets.flatten()).backward()
    optimizer.step()
distributed.destroy_process_group()
"""

#: Runs a command, and prints seconds of CPU and the most memory, in kilobytes.
MEASURED = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


def train(folder: Path) -> list[dict[str, Any]]:
    """What the files of two real ranks hold that train GPT-2 small."""
    script = folder / "train.py"
    script.write_text(TRAIN)
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    measured = ("-m", "torchprof_hooks", "--save", str(folder / "profile.json"))
    subprocess.run(
        [sys.executable, "-m", *launcher, *measured, str(script)],
        check=True,
        env={**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def generate(real: list[dict[str, Any]], folder: Path, count: int) -> int:
    """Writes the files of so many ranks; returns the bytes of one, on average."""
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
    with tempfile.TemporaryDirectory() as name:
        real = train(Path(name))
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as name:
            size = generate(real, Path(name), count)
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
                [
                    "Files of two ranks that train GPT-2 small for 100 steps, copied; "
                    "time of the command, and memory of the largest of its processes, "
                    f"of which up to {os.cpu_count()} read."
                ],
            )
        ],
    )


if __name__ == "__main__":
    main()
