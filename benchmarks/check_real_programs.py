"""Programs that other people wrote, bare and under the command, each unmodified.

Their output and exit code must be the same, and the phases of the report within 5 % of
a stopwatch around the same code (`real_programs/stopwatch.py`) in processes without us:
with us in them, it would see what we take as well. Both take turns. The machine is not
as fast at one time as at another, so what is compared are shares of the program's own
time, in the median. Short phases differ from process to process all the same: where one
is further off, both are put into one process, too.
Not a part of `make bench`: it needs large packages, and a checkout of torch's examples:

    python benchmarks/check_real_programs.py --examples DIR [--only NAME ...]

What cannot be had is said in the table. With `--only`, rows of other programs stay as
they are in it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import packages_distributions, version
from pathlib import Path
from statistics import median
from typing import Final

import results
from real_programs import stopwatch
from real_programs.data import write_digits, write_text
from real_programs.programs import CLOCKS, PROGRAMS, Program
from steady import STEADY

#: What Python is to run before a program that draws without a seed; and to watch one.
SEED: Final = "import random; random.seed(0)"
WATCH: Final = (
    f"import sys; sys.path.append({str(Path(__file__).parent)!r}); "
    "from pathlib import Path; from real_programs.stopwatch import start; "
    "start(Path({!r})); sys.path.pop()"
)
#: Where interpreters find that, and the clock of the stopwatch.
FIRST: Final = "first"
#: Lines of the totals in reports, by what the stopwatch calls the phase. For that one,
#: computing again is a part of backward, and so is the planning that is done in it.
PHASES: Final = {
    "forward": ("forward",),
    "backward": ("backward", "recompute", "the profiler's own planning"),
    "optimizer": ("optimizers",),
    "data": ("data loading",),
}
Phases = dict[str, float]
#: A phase of less than this share of the time of all phases is not compared.
LEAST_SHARE: Final = 0.02
#: Besides the phases: the program's time, with them.
WALL: Final = "wall"
#: How far a phase may be from the stopwatch.
MOST_PERCENT: Final = 5
LONGEST_SECS: Final = 300
HEADERS: Final = (
    "program",
    "with",
    "output",
    "exit codes",
    "phases, %",
    "date",
)


@dataclass(frozen=True, slots=True)
class Run:
    """What a process did."""

    code: int
    output: str
    report: str


def run(
    command: Sequence[str], folder: Path, ends_after: float, before_it: Sequence[str]
) -> Run:
    """The process of `command`; interrupted like by Ctrl-C after so many seconds.

    before_it: lines that its interpreter runs first.
    """
    environment = {**os.environ, **STEADY}
    if before_it:
        first = folder.parent / FIRST
        (first / "sitecustomize.py").write_text("\n".join((*before_it, "")))
        paths = (str(first), environment.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            output, errors = process.communicate(timeout=ends_after)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                output, errors = process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, errors = process.communicate()
    return Run(process.returncode, output, errors)


def without_clocks(output: str, program: Program) -> list[str]:
    """Its lines, without what its own clocks say."""
    for pattern in (*CLOCKS, *program.clocks):
        output = re.sub(pattern, "<time>", output)
    return output.splitlines()


def same_output(bare: Run, profiled: Run, program: Program) -> str:
    """Whether both printed the same: as far as both came, if they were interrupted."""
    before, after = (without_clocks(each.output, program) for each in (bare, profiled))
    if program.ends_after is not None:
        shorter = max(min(len(before), len(after)) - 1, 0)
        before, after = before[:shorter], after[:shorter]
    if before == after:
        return f"same, {len(before)} lines"
    first = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
        min(len(before), len(after)),
    )
    return f"differs in line {first + 1}"


def reported_s(report: str) -> Phases:
    """The phases by the report's totals, and the program's time, without what measuring
    took."""
    totals = report.partition("\nFunction profiling")[0]
    found = dict(
        re.findall(r"^ {4}([\w ,:()']+): (\d+\.\d+)s \(", totals, re.MULTILINE)
    )
    phases = {
        phase: sum(float(found.get(name, 0)) for name in names)
        for phase, names in PHASES.items()
    }
    wall = re.search(r"^ {2}Time measured: (\d+\.\d+)s", totals, re.MULTILINE)
    ours = float(found.get("measuring itself", 0))
    return {**phases, WALL: (float(wall[1]) if wall else 0.0) - ours}


def off_by(reports: Sequence[Phases], stopwatches: Sequence[Phases]) -> Phases:
    """Each phase that matters: by how many per cent the reports are above the
    stopwatch."""
    spent, said = shares(stopwatches), shares(reports)
    whole = sum(spent.values())
    return {
        phase: 100 * (said[phase] / spent[phase] - 1) if spent[phase] else 999.0
        for phase in PHASES
        if max(spent[phase], said[phase]) > LEAST_SHARE * whole
    }


def are_far(off: Phases) -> list[str]:
    """The phases of which that is too much."""
    return [phase for phase, percent in off.items() if abs(percent) > MOST_PERCENT]


def deviations(
    reports: Sequence[Phases], stopwatches: Sequence[Phases], together: Phases
) -> str:
    """How far the reports are from the stopwatch. Where that is far, also how far its
    runs are from their own median, and how much less the reports say in all.

    together: how far they are where both are in one process.
    """
    if not all(stopwatches):
        return "the stopwatch was not written"
    off = off_by(reports, stopwatches)
    far = are_far(off)
    parts = ", ".join(
        f"{phase} {percent:+.1f}" + (phase in far) * spread(phase, stopwatches)
        for phase, percent in off.items()
    )
    if not far:
        return parts
    spent, said = shares(stopwatches), shares(reports)
    missing = sum(spent[phase] - said[phase] for phase in PHASES)
    missing_s = missing * median(run[WALL] for run in stopwatches)
    inside = ", ".join(f"{phase} {together.get(phase, 0):+.1f}" for phase in far)
    return f"{parts}: {missing_s:.2f} s in all; both in one process: {inside}"


def spread(phase: str, stopwatches: Sequence[Phases]) -> str:
    """How far the single runs of the stopwatch are from what they are in the median."""
    usual = shares(stopwatches)[phase] or 1.0
    off = [100 * (shares([run])[phase] / usual - 1) for run in stopwatches]
    return f" (its own runs {min(off):+.1f} to {max(off):+.1f})"


def shares(runs: Sequence[Phases]) -> Phases:
    """Of the program's time, in the median."""
    return {
        phase: median(run.get(phase, 0.0) / (run[WALL] or 1.0) for run in runs)
        for phase in PHASES
    }


def stopwatch_s(path: Path) -> Phases:
    """What it has written; nothing if it has not."""
    if not path.exists():
        return {}
    times = json.loads(path.read_text())
    path.unlink()
    return {phase: times.get(phase, 0) / 1e9 for phase in (*PHASES, WALL)}


def versions(program: Program) -> str:
    """Of what it needs, and of torch."""
    homes = packages_distributions()
    return ", ".join(
        f"{name} {version(homes[name][0])}" for name in ("torch", *program.needs)
    )


def row(
    program: Program, examples: Path | None, work: Path, options: argparse.Namespace
) -> list[results.Cell]:
    """The row of one program. options: see `main`."""
    today = datetime.now(timezone.utc).date().isoformat()
    why = program.missing(examples)
    script = program.path(examples)
    if why or script is None:
        return [program.name, why, *[""] * (len(HEADERS) - 3), today]
    target = [str(script), *program.arguments]
    seeds = (SEED,) if program.draws_unseeded else ()
    ends_after = options.patience * (program.ends_after or LONGEST_SECS)
    times = work / "times.json"

    def run_with(*command: str, before_it: Sequence[str] = seeds) -> Run:
        # Torch's examples look for their data beside their folder.
        folder = work / "run"
        return run([sys.executable, *command, *target], folder, ends_after, before_it)

    command = "-m", "torchprof_hooks", "--full"
    watched = *seeds, WATCH.format(str(times))

    def in_one_process() -> Phases:
        """How far the report is from the stopwatch there, in seconds: measuring is a
        part of the program's time."""
        said, spent, second = [], [], {WALL: 1.0}
        for _ in range(options.rounds):
            report = run_with(*command, before_it=watched).report
            said.append({**reported_s(report), **second})
            spent.append({**stopwatch_s(times), **second})
        return off_by(said, spent)

    bare, reports, stopwatches = run_with(), [], []
    for _ in range(options.rounds):
        run_with(before_it=watched)
        stopwatches.append(stopwatch_s(times))
        profiled = run_with(*command)
        reports.append(profiled.report)
    said = list(map(reported_s, reports))
    is_far = all(stopwatches) and are_far(off_by(said, stopwatches))
    together = in_one_process() if is_far else {}
    (work / f"{program.name}.txt").write_text(f"\n{'=' * 80}\n".join(reports))
    return [
        program.name,
        versions(program),
        same_output(bare, profiled, program),
        f"{bare.code}, {profiled.code}",
        deviations(said, stopwatches, together),
        today,
    ]


def with_earlier(rows: list[list[results.Cell]]) -> list[list[results.Cell]]:
    """These rows, and those that others have from an earlier run."""
    try:
        earlier = results.load("real_programs")["tables"][0].rows
    except FileNotFoundError:
        earlier = []
    found = {row[0]: row for row in (*earlier, *rows)}
    return [found[p.name] for p in PROGRAMS if p.name in found]


def main() -> None:
    """Run them, and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument(
        "--patience",
        type=float,
        default=1.0,
        help="how slow the machine is: what runs for long is interrupted later",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="folder for reports, kept")
    options = parser.parse_args()
    # Where this was started in the background, programs would ignore it like this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    examples = None if options.examples is None else options.examples.absolute()
    with tempfile.TemporaryDirectory() as temporary:
        work = options.keep.absolute() if options.keep else Path(temporary)
        (work / "run" / "results").mkdir(parents=True, exist_ok=True)
        (work / FIRST).mkdir(exist_ok=True)
        stopwatch.build(work / FIRST)
        write_digits(work / "data")
        write_text(work / "run" / "text")
        for program in PROGRAMS:
            if not options.only or program.name in options.only:
                rows = with_earlier([row(program, examples, work, options)])
                title = "Programs of others"
                results.save("real_programs", [results.Table(title, HEADERS, rows)])


if __name__ == "__main__":
    main()
