"""What profiling a whole program adds to it, with the flags' defaults.

Target: at most 1.02 times the bare loop. And how far the times of modules, which are
estimates, are from those of `profile()`, which looks at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median

import results
import torch
from bench import Variant, compare, times_table
from models import chain_step, gpt2_step
from torch import nn

from torchprof_hooks import profile
from torchprof_hooks.capture.sampling.sampled_steps import SampledSteps
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import MODULE_PHASES
from torchprof_hooks.program.flags import Flags
from torchprof_hooks.program.recorder import make_sampler

#: Steps in a turn: a program is measured from its beginning to its end.
STEPS = 100
ROUNDS = 20


@contextmanager
def going_on(sampler: SampledSteps) -> Iterator[None]:
    """The sampler where it stopped the last time."""
    sampler.start()
    yield
    sampler.stop()


def measure(
    title: str, step: Callable[[], None]
) -> tuple[results.Table, dict[str, float]]:
    def steps() -> None:
        for _ in range(STEPS):
            step()

    steps()
    sampler, every = make_sampler(Flags()), profile()
    times = compare(
        steps,
        [
            Variant("bare"),
            Variant("a whole program's profile", lambda: going_on(sampler)),
            Variant("profile()", lambda: every),
        ],
        ROUNDS,
    )
    table = times_table(title, times, scale=1e-3 / STEPS, unit="us", baseline="bare")
    strata = sampler.strata()
    looked_at = [strata.looked_at(of_functions=f) for f in (False, True)]
    estimate = strata.estimate(of_functions=False, warm_up=False)
    bare, profiled, _ = (median(values) for values in times.values())
    figures = {
        "ratio": profiled / bare,
        "believed": sampler.spent_ns / strata.whole.wall_ns,
        "shares_off": deviation(estimate, every.profile),
    }
    note = (
        f"{strata.steps} steps: modules looked into in {looked_at[0]}, functions in "
        f"{looked_at[1]}; believed to cost {sampler.spent_ns / 1e6:.0f} ms, "
        f"{100 * figures['believed']:.1f} %; shares of modules: "
        f"{100 * figures['shares_off']:.1f} % off."
    )
    return replace(table, notes=[note]), figures


def deviation(found: ProfileData, true: Profile) -> float:
    """Median, over modules and phases that take 1 % of the time or more, of how far
    their share of the phase is from the true one. Times themselves have what measuring
    adds to them: more, where every step is measured."""
    mine = shares(found)
    off = [
        abs(mine.get(key, 0) / share - 1)
        for key, share in shares(true).items()
        if share > 0.01
    ]
    return median(off)


def shares(profile: ProfileData) -> dict[tuple[str, str], float]:
    """Of the own time of all modules in a phase, what each takes with inner calls."""
    rows = [row for row in profile.rows() if row.kind == "module"]
    found: dict[tuple[str, str], float] = {}
    for phase in MODULE_PHASES:
        whole_ns = sum(row.phases[phase].self_ns for row in rows)
        for row in rows:
            share = row.phases[phase].cumulative_ns / max(whole_ns, 1)
            found[row.name, phase] = share
    return found


def with_optimizer(step: Callable[[], None]) -> Callable[[], None]:
    """The step, and one of an optimizer: by that steps are known."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)

    def both() -> None:
        step()
        optimizer.step()

    return both


def main() -> None:
    torch.set_num_threads(1)
    chain = with_optimizer(chain_step(lambda: nn.Linear(8, 8)))
    found = {
        "gpt2": measure("Training step of GPT-2 small", gpt2_step()[0]),
        "linear": measure("Forward and backward of 100 x nn.Linear(8, 8)", chain),
    }
    results.save(
        "program",
        [table for table, _ in found.values()],
        {name: figures for name, (_, figures) in found.items()},
    )


if __name__ == "__main__":
    main()
