"""What profiling a whole program adds to it, with the flags' defaults.

Targets: at most 1.02 times the bare loop; and the means per module of the report within
5 % of those of `profile()`, which looks at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import torch
from bench import Variant, compare, machine, report
from models import chain_step, gpt2_step
from torch import nn

from torchprof_hooks import profile
from torchprof_hooks.capture.step_sampler import StepSampler
from torchprof_hooks.profiles.names import MODULE_PHASES
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.program.flags import Flags
from torchprof_hooks.program.recorder import make_sampler

#: Steps in a turn: a program is measured from its beginning to its end.
STEPS = 100
ROUNDS = 12


@contextmanager
def going_on(sampler: StepSampler) -> Iterator[None]:
    """The sampler where it stopped the last time."""
    sampler.start()
    yield
    sampler.stop()


def measure(title: str, step: Callable[[], None]) -> None:
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
    report(title, times, scale=1e-3 / STEPS, unit="us", baseline="bare")
    strata = sampler.strata()
    looked_at = [strata.looked_at(of_functions=f) for f in (False, True)]
    print(
        f"\n{strata.steps} steps: modules looked into in {looked_at[0]}, functions in "
        f"{looked_at[1]}; believed to cost {sampler.spent_ns / 1e6:.0f} ms, "
        f"{100 * sampler.spent_ns / strata.whole.wall_ns:.1f} %"
    )
    estimate = strata.estimate(of_functions=False, warm_up=False)
    print(f"means per module: {100 * deviation(estimate, every.profile):.1f} % off")


def deviation(found: Profile, true: Profile) -> float:
    """Median, over modules that take 1 % of the time or more, of how far their time per
    step and phase is from the true one."""
    mine = {row.name: row for row in found.rows()}
    off = []
    for row in true.rows():
        for phase in MODULE_PHASES:
            totals = row.phases[phase]
            if row.kind == "module" and totals.cumulative_ns > 0.01 * true.wall_ns:
                ours = mine[row.name].phases[phase]
                ratio = ours.cumulative_ns / found.steps
                ratio /= totals.cumulative_ns / true.steps
                off.append(abs(ratio - 1))
    return median(off)


def with_optimizer(step: Callable[[], None]) -> Callable[[], None]:
    """The step, and one of an optimizer: by that steps are known."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)

    def both() -> None:
        step()
        optimizer.step()

    return both


def main() -> None:
    torch.set_num_threads(1)
    print(machine())
    measure("Training step of GPT-2 small", gpt2_step()[0])
    chain = chain_step(lambda: nn.Linear(8, 8))
    measure("Forward and backward of 100 x nn.Linear(8, 8)", with_optimizer(chain))


if __name__ == "__main__":
    main()
