"""Runs to be compared, of a program that was made up, on a machine that others use."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp
from typing import Any

from tests.build import MS, Cells, profile_of
from torchprof_hooks import Profile
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.provenance import Provenance
from torchprof_hooks.profiles.totals import Totals

#: How long a call of a layer takes, in nanoseconds. They have one around them.
SIZES = [round(40_000 * 1.4**n) for n in range(12)]
CALLS = 40


def totals(mean_ns: float, hit_ns: float = 0.0) -> Totals:
    """Calls that differ by 5 %, of which one takes longer by `hit_ns`."""
    duration_ns = round(CALLS * mean_ns + hit_ns)
    squares_ns2 = CALLS * 1.0025 * mean_ns**2 + 2 * mean_ns * hit_ns + hit_ns**2
    return Totals(
        CALLS,
        duration_ns,
        min_ns=round(0.9 * mean_ns),
        duration_ns=duration_ns,
        squares_ns2=round(squares_ns2),
    )


def run(
    rng: random.Random,
    slower: Mapping[int, float] | None = None,
    *,
    speed: float = 1.0,
    noise: float = 0.015,
    drift: float = 0.05,
    began: int = 0,
    sizes: Sequence[int] = SIZES,
) -> Profile:
    """A run on a machine that others use, too: it is faster or slower as a whole, short
    layers are noisier, and now and then a call waits for a few milliseconds.

    slower: factors of layers by their numbers.
    noise, drift: by which share layers, and the machine, differ between runs.
    """
    cells: Cells = {}
    speed *= exp(rng.gauss(0, drift))
    around: dict[Phase, float] = {"forward": 0.0, "backward": 0.0}
    factors: dict[Phase, float] = {"forward": 1.0, "backward": 2.0}
    for number, size in enumerate(sizes):
        for phase, factor in factors.items():
            spread = noise * (1 + 2 * (size < 200_000))
            mean_ns = factor * speed * size * exp(rng.gauss(0, spread))
            mean_ns *= (slower or {}).get(number, 1.0)
            hit_ns = rng.expovariate(1 / (4 * MS)) * (rng.random() < 0.05)
            cells[f"Net > Net.{number}", phase] = totals(mean_ns, hit_ns)
            around[phase] += mean_ns
    names = {f"Net.{number}": f"Layer{number}" for number in range(len(sizes))}
    for phase, inside_ns in around.items():
        whole = totals(1.01 * inside_ns)
        cells["Net", phase] = replace(whole, self_ns=round(0.01 * inside_ns * CALLS))
    who = Provenance(pid=began, started_ns=began)
    return profile_of(cells, {"Net": "Net", **names}, provenance=(who,))


Runs = list[Profile]


def in_turns(
    seed: int, pairs: int, slower: Mapping[int, float] | None = None, **how: Any
) -> tuple[Runs, Runs]:
    """Runs of both sides in turns: old, new, new, old, ..."""
    rng = random.Random(seed)
    old, new = [], []
    for pair in range(pairs):
        first = pair % 2
        speed = exp(rng.gauss(0, 0.1))
        old.append(run(rng, speed=speed, began=2 * pair + first + 1, **how))
        new.append(run(rng, slower, speed=speed, began=2 * pair + 2 - first, **how))
    return old, new


def one_after_the_other(
    seed: int, runs: int, slower: Mapping[int, float] | None = None, speed: float = 1.0
) -> tuple[Runs, Runs]:
    """Runs before, and runs after, when the machine takes `speed` times as long."""
    rng = random.Random(seed)
    old = [run(rng, began=number + 1) for number in range(runs)]
    new = [
        run(rng, slower, speed=speed, began=runs + number + 1) for number in range(runs)
    ]
    return old, new
