"""What the profiler adds to programs of ten kinds, from start to end, and what it says
that it adds.

Target: what the report says (measuring, beginning, making the report) is within a
quarter of what a stopwatch around the process says. Each program runs bare and measured
(``TORCHPROF_HOOKS_FLAGS="profile=True"``) in turns, each in a fork of a Python that has
imported torch and its compiler: that takes longer than these programs, and differs by
more than what is measured. The stopwatch is processor time, of the system's for it as
well and that of its worker processes, since other programs on the machine change
durations more than we do. It is read when the last function that runs at exit is done;
what Python takes after that, to take itself apart, no report can tell: a column of its
own.

    python benchmarks/bench_whole_programs.py [--only NAME ...] [--rounds N]
"""

from __future__ import annotations

import argparse
import atexit
import os
import resource
import runpy
import sys
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryFile
from time import perf_counter
from typing import Any, Final, NamedTuple, NoReturn

import results
import torch  # forks have it
from bench import rounds
from said import said
from steady import start_steady

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
    "after the last exit function",
)
#: Of what is added, how much a report says at least and at most.
LEAST, MOST = 0.75, 1.25
ROUNDS: Final = 12


class Run(NamedTuple):
    """One process, in seconds.

    processor: until the last function that runs at exit is done.
    ending: what its processor took from then on.
    said: what its report says that we took: measuring, beginning, making the report.
    """

    processor: float
    ending: float
    elapsed: float
    said: tuple[float, ...] = ()


def run(name: str, *, is_measured: bool) -> Run:
    """The program of that name, in a fork.

    Raises:
        RuntimeError: it did not end well.
    """
    with TemporaryFile("w+") as output, TemporaryFile("w+") as stopwatch:
        began = perf_counter()
        child = os.fork()
        if child == 0:
            # Of its own: these are closed before functions run at exit.
            atexit.register(stop, os.dup(stopwatch.fileno()))
            become(name, output.fileno(), is_measured=is_measured)
        _, status, spent = os.wait4(child, 0)
        elapsed = perf_counter() - began
        output.seek(0)
        stopwatch.seek(0)
        told, stopped = output.read(), stopwatch.read()
    if status:
        raise RuntimeError(f"{name} ended with {status}:\n{told}")
    found = said(told) if is_measured else ()
    processor = float(stopped)
    return Run(processor, seconds(spent) - processor, elapsed, found)


def stop(stopwatch: int) -> None:
    """Write down the processor time of this process and of its children."""
    spent = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    os.write(stopwatch, str(sum(map(seconds, spent))).encode())


def seconds(spent: resource.struct_rusage) -> float:
    """Of its processor, the system's for it as well."""
    return spent.ru_utime + spent.ru_stime


def become(name: str, output: int, *, is_measured: bool) -> NoReturn:
    """Run the program as Python does, and end as it does."""
    for stream in (1, 2):
        os.dup2(output, stream)
    if is_measured:
        os.environ["TORCHPROF_HOOKS_FLAGS"] = "profile=True"
        import torchprof_hooks  # noqa: F401  - begins
    sys.argv = [str(SCRIPT), name]
    runpy.run_path(str(SCRIPT), run_name="__main__")
    sys.exit()


def measure(name: str, count: int) -> dict[str, Any]:
    """Figures of one program, in seconds: medians of so many rounds, and the standard
    error of what is added (see `error_of_median`)."""
    run(name, is_measured=True)  # fills caches, of compiled code too
    pairs = [
        (run(name, is_measured=False), run(name, is_measured=True))
        for _ in range(count)
    ]
    bare, measured = zip(*pairs, strict=True)
    added = [ours.processor - alone.processor for alone, ours in pairs]
    ending = [ours.ending - alone.ending for alone, ours in pairs]
    return {
        "processor": median(each.processor for each in bare),
        "elapsed": median(each.elapsed for each in bare),
        "added": median(added),
        "error": error_of_median(added),
        "ending": median(ending),
        "ending_error": error_of_median(ending),
        "added_elapsed": median(ours.elapsed - alone.elapsed for alone, ours in pairs),
        "said": [
            median(part) for part in zip(*(m.said for m in measured), strict=True)
        ],
    }


def error_of_median(values: Sequence[float]) -> float:
    """The standard error, by the distance of the quartiles: 1.253 times that of the
    mean where values are spread normally."""
    first, _, third = quantiles(values, n=4) if len(values) > 1 else (0.0, 0.0, 0.0)
    return 1.253 * (third - first) / 1.349 / sqrt(len(values))


def cells(name: str, found: dict[str, Any]) -> list[results.Cell]:
    told = sum(found["said"])
    share = told / found["added"] if found["added"] > 0 else float("inf")
    return [
        name,
        f"{found['processor']:.2f}",
        f"{found['elapsed']:.2f}",
        f"{found['added']:.2f} \N{PLUS-MINUS SIGN} {found['error']:.2f}",
        f"{found['added_elapsed']:.2f}",
        f"{told:.2f}",
        *(f"{part:.2f}" for part in found["said"]),
        f"{share:.2f}" + ("" if LEAST <= share <= MOST else " !"),
        f"{found['ending']:.2f} \N{PLUS-MINUS SIGN} {found['ending_error']:.2f}",
    ]


def together(programs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The sums, which chance is a smaller part of."""
    sums: dict[str, Any] = {
        name: sum(each[name] for each in programs)
        for name in ("processor", "elapsed", "added", "ending", "added_elapsed")
    }
    for error in ("error", "ending_error"):
        sums[error] = sqrt(sum(each[error] ** 2 for each in programs))
    columns = zip(*(each["said"] for each in programs), strict=True)
    sums["said"] = list(map(sum, columns))
    return sums


def program_names() -> list[str]:
    """Those of the script, which is looked at in a fork of its own: it imports much."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        names = runpy.run_path(str(SCRIPT))["PROGRAMS"]
        os.write(writing, "\n".join(names).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return os.read(reading, 1 << 16).decode().split("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=rounds(ROUNDS))
    options = parser.parse_args()
    start_steady()
    torch.set_num_threads(1)
    # Imports torch's compiler, which forks have as well.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)]).step()
    found, loads = {}, []
    for name in options.only or program_names():
        loads.append(os.getloadavg()[0])
        found[name] = measure(name, max(options.rounds, 1))
        print(cells(name, found[name]), flush=True)
    if options.only:
        return
    note = (
        f"Seconds, medians of {max(options.rounds, 1)} rounds, "
        "\N{PLUS-MINUS SIGN} a standard error; without imports of torch. !: not "
        "within a quarter. After the last exit function: what is added to the time in "
        "which Python takes itself apart. Programs that ran or waited on "
        f"this machine of {os.cpu_count()} cores meanwhile, these among them: "
        f"{median(loads):.1f}."
    )
    rows = [cells(name, figures) for name, figures in found.items()]
    rows.append(cells("all of them", together(list(found.values()))))
    table = results.Table("Programs from start to end", HEADERS, rows, [note])
    results.save("whole_programs", [table], found)


if __name__ == "__main__":
    main()
