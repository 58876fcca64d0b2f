"""What measuring a program within a budget costs, and whether the report tells it.

Programs run bare (``python program.py``) and measured (``python -m torchprof_hooks
program.py``) in turns, each in a process of its own, with as many steps: so many that
the bare steps take ``--seconds``. A stopwatch outside of the process tells the cost, by
the clock on the wall and by processor time, beginning and end included. What the report
says of it comes from the saved profile, and so do the shares of modules, which are
compared with those of one run that measures every step. A program fails that prints
something else under the command.

    python benchmarks/bench_budgets.py [--only NAME ...] [--seconds 60] [--rounds 5]

It takes 11 or 17 minutes a program. With ``--only``, rows of other programs stay as
they are. What else is installed than torch and transformers: stable-baselines3,
lightning, fastai, diffusers; programs with a library that is not there are left out.
They are unmodified, and know nothing of the package.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, TemporaryFile
from time import perf_counter
from typing import Any, Final, NamedTuple

import results
from page.budget_tables import AIMS, LEAST_SHARE, aims_table, table

from torchprof_hooks import Profile

HERE: Final = Path(__file__).parent
SECONDS, ROUNDS = 60.0, 5
#: What would make two runs of one program differ by chance, held still. Where glibc
#: gives large blocks back to the system, each page of the next one is a fault: some
#: programs take twice as long, and whether it does depends on what was allocated.
STEADY: Final = {
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
}
#: Options of the command, by what the table calls them.
VARIANTS: Final[Mapping[str, Sequence[str]]] = {
    "default": (),
    "0.01": ("--max-overhead", "0.01"),
}
#: Measures modules in every step: what the shares of the others are compared with.
#: Functions would take time of their own.
EXACT: Final = ("--max-overhead", "none", "--time-thunks", "False")
#: Looks for a second how much of a core there is.
SPIN: Final = """
from time import perf_counter, process_time
end, began = perf_counter() + 1, process_time()
while perf_counter() < end: pass
print(process_time() - began)
"""


@dataclass(frozen=True, slots=True)
class Program:
    """One that trains for as many steps, or epochs, as its last argument says.

    arguments: the script, and what comes before that number.
    needs: the library that it is written with.
    """

    arguments: tuple[str, ...]
    needs: str = "torch"


def _ours(name: str, needs: str = "torch") -> Program:
    return Program((str(HERE / "budget_programs.py"), name), needs)


def _library(needs: str, script: str) -> Program:
    return Program((str(HERE / "programs" / script),), needs)


CLOCKS: Final = ("wall", "processor")

#: By what the table calls them.
PROGRAMS: Final[Mapping[str, Program]] = {
    "GPT-2 small": _ours("gpt2"),
    "ResNet": _ours("resnet"),
    "LSTM": _ours("lstm"),
    "transformers Llama": _ours("llama", "transformers"),
    "100 x nn.Linear(8, 8)": _ours("linear"),
    "reinforcement learning": _ours("reinforcement"),
    "stable-baselines3": _library("stable_baselines3", "baselines_ppo.py"),
    "Lightning": _library("pytorch_lightning", "lightning_fit.py"),
    "fastai": _library("fastai", "fastai_fit.py"),
    "diffusers": _library("diffusers", "diffusers_unet.py"),
}


class Run(NamedTuple):
    """Seconds of a process, with those of the processes that it waited for; and what it
    printed."""

    wall: float
    processor: float
    output: bytes


class Spread(NamedTuple):
    """Of the rounds."""

    median: float
    low: float
    high: float


def run(program: Program, steps: int, *command: str) -> Run:
    """Python with this command, if any, before the program.

    Raises:
        RuntimeError: it did not end well.
    """
    paths = filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH")))
    environment = {**os.environ, **STEADY, "PYTHONPATH": os.pathsep.join(paths)}
    arguments = [sys.executable, *command, *program.arguments, str(steps)]
    with (
        TemporaryDirectory() as folder,
        TemporaryFile() as output,
        TemporaryFile() as errors,
    ):
        began = perf_counter()
        child = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=environment,
            cwd=folder,
        )
        _, status, spent = os.wait4(child.pid, 0)
        wall = perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            errors.seek(0)
            said = errors.read().decode(errors="replace")
            raise RuntimeError(f"{arguments} ended with {status}:\n{said}")
        output.seek(0)
        return Run(wall, spent.ru_utime + spent.ru_stime, output.read())


def measured(program: Program, steps: int, *options: str) -> tuple[Run, Profile]:
    """The program under the command, and the profile that it saves."""
    with TemporaryDirectory() as folder:
        path = str(Path(folder, "profile.json"))
        command = ("-m", "torchprof_hooks", *options, "--save", path)
        return run(program, steps, *command), Profile.load(path)


def steps_for(program: Program, seconds: float) -> int:
    """How many steps take so long, without what comes before them and after them."""
    begun, steps = run(program, 1).wall, 4
    while (spent := run(program, 1 + steps).wall - begun) < min(2.0, seconds / 2):
        steps *= 4
    return max(round(seconds * steps / spent), 1)


def cores_taken() -> float:
    """How many cores other processes keep busy at the moment."""
    cores = range(len(os.sched_getaffinity(0)))
    command = [sys.executable, "-c", SPIN]
    spinning = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in cores]
    return max(sum(1 - float(spin.communicate()[0]) for spin in spinning), 0.0)


def shares(profile: Profile) -> dict[str, float]:
    """Of the loop, or of all if its beginning is not known, without what measuring
    took: what modules take with inner calls, forward and backward."""
    loop = profile.loop if profile.loop.wall_ns else profile
    rows = loop.rows()
    whole_ns = sum(row.self_ns for row in rows if row.kind != "profiler")
    modules = (row for row in rows if row.kind == "module")
    return {row.name: row.cumulative_ns / whole_ns for row in modules}


def shares_off(found: Profile, exact: Profile) -> float:
    """How far the share is off of the module that is furthest off."""
    mine = shares(found)
    known = {name: s for name, s in shares(exact).items() if s > LEAST_SHARE}
    return max((abs(mine.get(name, 0) / s - 1) for name, s in known.items()), default=0)


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def figures_of(
    bare: Sequence[Run], runs: Sequence[tuple[Run, Profile]], exact: Profile
) -> dict[str, Any]:
    """Of one variant, in the same rounds as the bare program. What is added is a part
    of the bare time in a cost, and of the measured time in what the report says."""
    profiles = [profile for _, profile in runs]
    said = [profile.overhead_ns / _program_ns(profile) for profile in profiles]
    found: dict[str, Any] = {
        "said": spread(said),
        "said_error": median(p.overhead_error_ns / _program_ns(p) for p in profiles),
        "shares_off": spread([shares_off(profile, exact) for profile in profiles]),
    }
    for clock in CLOCKS:
        pairs = [
            (getattr(alone, clock), getattr(ours, clock))
            for alone, (ours, _) in zip(bare, runs, strict=True)
        ]
        found[clock] = spread([ours / alone - 1 for alone, ours in pairs])
        added = [1 - alone / ours for alone, ours in pairs]
        off = [share - true for share, true in zip(said, added, strict=True)]
        found[f"said_off_{clock}"] = spread(off)
    for what in ("steps", "measured"):
        counts = (getattr(profile.measured, what) for profile in profiles)
        found[what] = round(median(counts))
    return found


def _program_ns(profile: Profile) -> int:
    return profile.program.program_ns if profile.program else profile.wall_ns


def measure(name: str, seconds: float, rounds: int) -> dict[str, Any]:
    """The figures of one program."""
    program, variants = PROGRAMS[name], AIMS[name]
    steps = steps_for(program, seconds)
    measured(program, 1)  # fills caches, and builds the native core
    exact_run, exact = measured(program, steps, *EXACT)
    bare: list[Run] = []
    busy: list[float] = []
    found: dict[str, list[tuple[Run, Profile]]] = {each: [] for each in variants}
    for turn in range(rounds):
        busy.append(cores_taken())
        # In the other order each time: a machine that drifts does so for all.
        for each in ("", *variants)[:: -1 if turn % 2 else 1]:
            if each:
                found[each].append(measured(program, steps, *VARIANTS[each]))
            else:
                bare.append(run(program, steps))
        print(f"  {busy[-1]:.2f} cores busy; {bare[-1].wall:.1f} s", flush=True)
    outputs = {each.output for each in (*bare, exact_run)}
    outputs |= {ours.output for runs in found.values() for ours, _ in runs}
    if len(outputs) > 1:
        raise RuntimeError(f"{name} does not print the same each time: {outputs}")
    wall, processor = (median(getattr(each, c) for each in bare) for c in CLOCKS)
    usual = Run(wall, processor, b"")
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "version": version(packages_distributions()[program.needs][0]),
        "steps": steps,
        "rounds": rounds,
        "cores_busy": busy,
        "bare": {"wall": wall, "processor": processor},
        "variants": {
            **{each: figures_of(bare, runs, exact) for each, runs in found.items()},
            "exact": figures_of([usual], [(exact_run, exact)], exact),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), metavar="NAME"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    figures, failed = dict(results.figures("budgets") or {}), list[str]()
    for name in options.only:
        if find_spec(needs := PROGRAMS[name].needs) is None:
            print(f"{name}: left out, {needs} is not installed", flush=True)
            continue
        print(name, flush=True)
        try:
            figures[name] = measure(name, options.seconds, max(options.rounds, 1))
        except RuntimeError as error:  # the others are worth their hours
            print(error, flush=True)
            failed.append(name)
            continue
        results.save("budgets", [table(figures), aims_table()], figures)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
