"""Whether the gate of the pytest plugin is right: runs of a test whose code did not
change, and runs in which one of its modules does a tenth more work.

Targets: no unchanged run of 200 fails, and 19 of 20 slower ones do, by that module.
Each run is a session of pytest, a process of its own, as for users. Baselines are
measured anew now and then: what is chance in one of them would be in all runs. Several
at once are what else a busy machine does.

    python benchmarks/check_gate.py --unchanged 200 --slower 20
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

import results

ROOT = Path(__file__).parent.parent
#: Runs with one baseline.
RUNS_OF_BASELINE = 10

#: WORK: products of matrices in one of the modules, forward (and twice in backward).
TEST = """
import os
import torch
from torch import nn

class Products(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.count = count
        self.factor = nn.Parameter(torch.randn(192, 192) / 14)

    def forward(self, x):
        for _ in range(self.count):
            x = x @ self.factor
        return x

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(192, 384), nn.GELU(), nn.Linear(384, 192))
        self.products = Products(int(os.environ["WORK"]))
        self.norm = nn.LayerNorm(192)
        self.head = nn.Linear(192, 10)

    def forward(self, x):
        return self.head(self.norm(self.products(x + self.inner(x))))

def test_step(torchprof):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net, batch = Net(), torch.randn(64, 192)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def step():
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()

    torchprof.check(step)
"""
WORK = 20
COLUMNS = ("passed", "failed by the module", "failed by others", "error")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unchanged", type=int, default=200, help="%(default)s runs")
    parser.add_argument("--slower", type=int, default=20, help="%(default)s runs")
    parser.add_argument("--jobs", type=int, default=2, help="%(default)s at once")
    return parser.parse_args()


def session(folder: Path, work: int, *options: str) -> str:
    """What pytest printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WORK": str(work)}
    command = [sys.executable, "-m", "pytest", "-q", *options]
    if "torchprof" not in {each.name for each in entry_points(group="pytest11")}:
        command += ["-p", "torchprof_hooks.integrations.gate.plugin"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "test_net.py"],
        cwd=folder,
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def outcome(printed: str) -> str:
    """One of `COLUMNS`."""
    if re.search(r"^1 passed", printed, re.MULTILINE):
        return "passed"
    slower = re.findall(r"^(\S.*?)  .*slower$", printed, re.MULTILINE)
    if not slower:
        return "error"
    return "failed by the module" if slower[0] == "Net.products" else "failed by others"


class Plan(NamedTuple):
    """Runs with one baseline, which has `WORK`."""

    work: int
    runs: int


def carried_out(plan: Plan) -> Counter[str]:
    """How often what came of its runs."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "test_net.py").write_text(TEST)
        session(folder, WORK, "--torchprof-update")
        for run in range(plan.runs):
            printed = session(folder, plan.work)
            found[outcome(printed)] += 1
            told = f"{plan.work} products, run {run + 1}: {outcome(printed)}"
            print(told if outcome(printed) == "passed" else told + printed, flush=True)
    return found


def plans(work: int, runs: int) -> list[Plan]:
    starts = range(0, runs, RUNS_OF_BASELINE)
    return [Plan(work, min(RUNS_OF_BASELINE, runs - start)) for start in starts]


def main() -> None:
    args = parse_args()
    more = WORK + WORK // 10
    kinds = {"the same": WORK, "a tenth more": more}
    wanted = [*plans(more, args.slower), *plans(WORK, args.unchanged)]
    with ThreadPoolExecutor(args.jobs) as pool:
        outcomes = list(pool.map(carried_out, wanted))
    rows: list[list[results.Cell]] = []
    for name, work in kinds.items():
        found = Counter[str]()
        for plan, outcome_of_plan in zip(wanted, outcomes, strict=True):
            if plan.work == work:
                found += outcome_of_plan
        rows.append([name, *(found[column] for column in COLUMNS)])
    note = (
        f"A baseline for {RUNS_OF_BASELINE} runs each, of eight processes; "
        f"{args.jobs} sessions at once on {os.cpu_count()} cores."
    )
    results.save("gate", [results.Table("", ["work", *COLUMNS], rows, [note])])


if __name__ == "__main__":
    main()
