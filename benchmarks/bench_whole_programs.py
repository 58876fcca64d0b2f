"""What the command adds to programs of ten kinds, from start to end, and what it says
that it adds.

Target: what the report says (measuring, beginning, making the report) is within a
quarter of what a stopwatch around the process says. Each program runs bare and under
the command in turns; the stopwatch is processor time, of the system's for it as well
and that of its worker processes, since other programs on the machine change durations
more than we do.

    python benchmarks/bench_whole_programs.py [--only NAME ...] [--rounds N]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from time import perf_counter
from typing import Any, Final

import results
from bench import rounds
from said import said
from whole_programs import PROGRAMS

SCRIPT: Final = Path(__file__).parent / "whole_programs.py"
HEADERS: Final = (
    "",
    "bare: processor",
    "elapsed",
    "added: processor",
    "elapsed",
    "report says",
    "of that: measuring",
    "beginning",
    "report",
    "said of added",
)
#: Of what is added, how much a report says at least and at most.
LEAST, MOST = 0.75, 1.25


@dataclass(frozen=True, slots=True)
class Run:
    """One process, in seconds.

    said: what its report says that we took: measuring, beginning, making the report.
    """

    processor: float
    elapsed: float
    said: tuple[float, ...] = ()


def run(command: Sequence[str]) -> Run:
    before, began = getrusage(RUSAGE_CHILDREN), perf_counter()
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    elapsed, after = perf_counter() - began, getrusage(RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    is_ours = command[0] == "-m"
    return Run(processor, elapsed, said(done.stderr) if is_ours else ())


def measure(name: str, count: int) -> dict[str, Any]:
    """Figures of one program, in seconds, of so many rounds.

    What is added is the difference of the fastest runs: other programs on the machine
    only ever add, and more than we do.
    """
    program = [str(SCRIPT), name]
    bare, profiled = [], []
    run(program)  # fills caches, of compiled code too
    for _ in range(count):
        bare.append(run(program))
        profiled.append(run(["-m", "torchprof_hooks", *program]))
    added = [p.processor - b.processor for b, p in zip(bare, profiled, strict=True)]
    least, least_profiled = (min(r.processor for r in of) for of in (bare, profiled))
    parts = [median(times) for times in zip(*(p.said for p in profiled), strict=True)]
    return {
        "processor": least,
        "elapsed": median(run.elapsed for run in bare),
        "added": least_profiled - least,
        "added_from_to": [min(added), max(added)],
        "added_elapsed": median(p.elapsed for p in profiled)
        - median(b.elapsed for b in bare),
        "said": parts,
    }


def cells(name: str, found: dict[str, Any]) -> list[results.Cell]:
    low, high = found["added_from_to"]
    told = sum(found["said"])
    share = told / found["added"] if found["added"] > 0 else float("inf")
    return [
        name,
        f"{found['processor']:.2f}",
        f"{found['elapsed']:.2f}",
        f"{found['added']:.2f} ({low:.2f} to {high:.2f})",
        f"{found['added_elapsed']:.2f}",
        f"{told:.2f}",
        *(f"{part:.2f}" for part in found["said"]),
        f"{share:.2f}" + ("" if LEAST <= share <= MOST else " !"),
    ]


def together(programs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The sums, which chance is a smaller part of."""
    sums: dict[str, Any] = {
        name: sum(each[name] for each in programs)
        for name in ("processor", "elapsed", "added", "added_elapsed")
    }
    for name in ("added_from_to", "said"):
        columns = zip(*(each[name] for each in programs), strict=True)
        sums[name] = list(map(sum, columns))
    return sums


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=rounds(40) // 10)
    options = parser.parse_args()
    found, loads = {}, []
    for name in options.only or PROGRAMS:
        loads.append(os.getloadavg()[0])
        found[name] = measure(name, max(options.rounds, 1))
        print(cells(name, found[name]), flush=True)
    if options.only:
        return
    note = (
        f"Seconds, of {max(options.rounds, 1)} rounds: of the processor those of the "
        "fastest runs, in brackets the least and the most of a round; the others are "
        "medians. !: not within a quarter. Programs that ran or waited on "
        f"this machine of {os.cpu_count()} cores meanwhile, these among them: "
        f"{median(loads):.1f}."
    )
    rows = [cells(name, figures) for name, figures in found.items()]
    rows.append(cells("all of them", together(list(found.values()))))
    table = results.Table("Programs from start to end", HEADERS, rows, [note])
    results.save("whole_programs", [table], found)


if __name__ == "__main__":
    main()
