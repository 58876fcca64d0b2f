"""What profiling a whole program adds to one of many short calls, with the defaults.

Reinforcement learning: 100 calls of a small policy, then one step of the optimizer.
Target: at most 1.05 times as long as alone, from start to end; and what the report says
that measuring took is what a stopwatch says, within a quarter. One process differs from
the next by several per cent, alone as well, so the quartiles are told, too.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import results
from bench import rounds
from said import said

PROGRAM = """
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
policy = nn.Sequential(
    nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
)
optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
for episode in range(2000):
    state, chosen = torch.zeros(8), []
    for _ in range(100):
        scores = torch.log_softmax(policy(state), -1)
        action = int(scores.detach().argmax())
        chosen.append(scores[action])
        state = 0.9 * state + 0.1 * action
    optimizer.zero_grad()
    torch.stack(chosen).mean().neg().backward()
    optimizer.step()
"""
ROUNDS = 9


class Run(NamedTuple):
    """Seconds of the processor, and those that the report takes upon itself."""

    user_s: float
    believed_s: float


def run(*arguments: str) -> Run:
    """Python with these arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    user_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    is_ours = arguments[0] == "-m"
    return Run(user_s, sum(said(done.stderr)) if is_ours else 0.0)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "policy.py")
        path.write_text(PROGRAM)
        pairs = [
            (run(str(path)), run("-m", "torchprof_hooks", str(path)))
            for _ in range(rounds(ROUNDS))
        ]
    bare_s = median(bare.user_s for bare, _ in pairs)
    ratios = [ours.user_s / bare.user_s for bare, ours in pairs]
    added_s = (median(ratios) - 1) * bare_s
    low, _, high = quantiles(ratios)
    believed_s = median(ours.believed_s for _, ours in pairs)
    figures = {
        "ratio": median(ratios),
        "believed": 1 + believed_s / bare_s,
    }
    times = (bare_s, bare_s + added_s, added_s, believed_s)
    row = [*(f"{s:.2f} s" for s in times), f"{median(ratios):.3f}"]
    rows = [[*row, f"{low:.3f} - {high:.3f}"]]
    headers = ["alone", "measured", "more", "said by the report", "ratio", "quartiles"]
    title = "2000 episodes of 100 calls of a small policy"
    note = (
        "User time of the processor, whole processes in turns, medians of the ratios "
        "of each pair."
    )
    table = results.Table(title, headers, rows, [note])
    results.save("short_calls", [table], figures)


if __name__ == "__main__":
    main()
