"""What `profile()` adds to training steps on a GPU, in profiles that go on.

A turn is a block of steps after some that do not count, so that what is done once per
profile, such as making rows, is not in it. A ratio is that of neighbours: of a turn
and of the bare turn of the same round. Besides: what a module call costs by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from statistics import median
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

import torch
from bench import Variant, compare, device, rounds, wait
from bench_overhead import BARE, Figures, cell, to_figures
from gpu_results import Progress, chosen
from models import Workload, gpt2_large, gpt2_small, resnet, resnet_large
from results import Cell, Table
from torch import nn

from torchprof_hooks import Profile, profile

Step = Callable[[], None]
Options = Mapping[str, Any]

VARIANTS: Final[Sequence[Options]] = ({}, {"memory": True}, {"functions": True})

#: Seconds of a turn of bare steps.
TURN_S: Final = 0.25
#: Before the steps of a turn: those that make rows, and find a step's places.
WARM_UP_STEPS: Final = 4
FEWEST_STEPS, FEWEST_ROUNDS = 4, 3
#: Modules of the chain whose calls are timed, and how often it is called in a new
#: profile: as often as a device is stamped in any case.
CHAIN, CALLS = 100, 6


class Plan(NamedTuple):
    """A model, and seconds for its turns."""

    make: Callable[[str], Workload]
    seconds: float


PLANS: Final = (
    Plan(gpt2_small, 20),
    Plan(resnet_large, 16),
    Plan(gpt2_large, 20),
    Plan(resnet, 10),
)


def name_of(options: Options) -> str:
    """A variant as one would write it."""
    said = ", ".join(f"{name}={value}" for name, value in options.items())
    return f"profile({said})"


def turns(
    name: str, step: Step, steps: int, around: AbstractContextManager[Any]
) -> Variant:
    """The same profile in all turns, or nothing."""

    @contextmanager
    def enter() -> Iterator[None]:
        with around:
            warm_up(step, steps)
            yield

    return Variant(name, enter)


def warm_up(step: Step, steps: int) -> None:
    """What does not count of a turn of so many steps."""
    for _ in range(warm_up_steps(steps)):
        step()
    wait()


def warm_up_steps(steps: int) -> int:
    return max(WARM_UP_STEPS, steps // 10)


def steady(
    step: Step, variants: Sequence[Options], seconds: float, turn_s: float
) -> Figures:
    """Ratios to bare steps: of so many seconds in all, about."""
    step_s = seconds_of(step)
    steps = max(FEWEST_STEPS, rounds(round(turn_s / step_s)))
    profiles = {name_of(options): profile(**options) for options in variants}
    around: dict[str, AbstractContextManager[Any]] = {BARE: nullcontext(), **profiles}
    running = [turns(name, step, steps, each) for name, each in around.items()]

    def turn() -> None:
        for _ in range(steps):
            step()

    # Those with functions take longer; a first round is dropped.
    round_s = 1.3 * (steps + warm_up_steps(steps)) * step_s * len(running)
    count = max(FEWEST_ROUNDS, round(seconds / round_s) - 1)
    found = to_figures(compare(turn, running, count), steps)
    for name, prof in profiles.items():
        found[name]["stamped"] = stamped(prof.profile)
    return found


def stamped(found: Profile) -> float:
    """The share of measured steps in which the device was stamped."""
    stamped, others = found.steps_with_device_times, found.steps_without_device_times
    return round(stamped / max(stamped + others, 1), 3)


def seconds_of(step: Step) -> float:
    """Of a bare step."""
    warm_up(step, 0)
    taken_ns = []
    for _ in range(3):
        start_ns = perf_counter_ns()
        for _ in range(FEWEST_STEPS):
            step()
        wait()
        taken_ns.append((perf_counter_ns() - start_ns) / FEWEST_STEPS)
    return min(taken_ns) / 1e9


def measure(plan: Plan) -> tuple[Workload, Figures]:
    """All variants on one model."""
    workload = plan.make(device())
    return workload, steady(workload.step, VARIANTS, plan.seconds, TURN_S)


def cost_table(workload: Workload, found: Figures) -> Table:
    """Times of a step, and ratios to the bare one."""
    bare_ms = found[BARE]["ms_per_step"]
    rows: list[list[Cell]] = []
    for name, figures in found.items():
        added_us = (figures["ratio"] - 1) * bare_ms * 1000
        rows.append(
            [
                name,
                f"{figures['ms_per_step']:.2f}",
                cell(figures),
                f"{added_us / workload.modules:.2f}",
                f"{figures['stamped']:.0%}" if "stamped" in figures else "",
                f"{figures['rounds']} x {figures['steps_per_round']}",
            ]
        )
    headers = [
        "",
        "ms",
        "ratio to bare",
        "us added per module",
        "stamped steps",
        "rounds x steps",
    ]
    return Table(f"A step: {workload.name}", headers, rows)


def chain_call() -> Step:
    """Calls of modules that do nothing: on the host, and not on the device."""
    model, x = nn.Sequential(*(nn.Identity() for _ in range(CHAIN))), torch.ones(1)
    return lambda: model(x)


def call_ns(call: Step, options: Sequence[Options]) -> list[float]:
    """What a module call takes longer in new profiles than without any. Nothing waits
    for the device, as that would put it into use."""
    makers: list[Callable[[], AbstractContextManager[Any]]] = [nullcontext]
    makers += [partial(profile, **each) for each in options]
    times: list[list[int]] = [[] for _ in makers]
    for _ in range(rounds(200)):
        for make, taken in zip(makers, times, strict=True):
            with make():
                call()  # which does not count: there, rows are made
                start_ns = perf_counter_ns()
                for _ in range(CALLS):
                    call()
                taken.append(perf_counter_ns() - start_ns)
    bare_ns, *each_ns = (median(taken) for taken in times)
    return [(each - bare_ns) / (CALLS * (CHAIN + 1)) for each in each_ns]


def native_costs() -> dict[str, float]:
    """Nanoseconds that the core takes for a module call in forward: without a device,
    for the stamps, and for memory. To be called before anything is put on the device.
    """
    call = chain_call()
    with torch.no_grad():
        [without] = call_ns(call, [{}])
        in_use = torch.ones(1, device=device())
        options = [{}, {"memory": "cpu"}, {"memory": device()}]
        exact, of_host, of_device = call_ns(call, options)
    del in_use
    return {
        "no device is in use": without,
        "stamps": exact - without,
        "memory": of_device - exact,
        "... of it, reading the counters of the device": of_device - of_host,
    }


def native_table(found: Mapping[str, float]) -> Table:
    rows = [[name, f"{nanoseconds:.0f}"] for name, nanoseconds in found.items()]
    notes = [
        "What is added to each call of a module that does nothing, in forward: two "
        "moves of the cursor, with what they read, in the first steps of a profile. "
        "Later, not all steps are stamped."
    ]
    return Table("What a module call costs the core", ["", "ns"], rows, notes)


def measure_native(progress: Progress) -> None:
    found = native_costs()
    progress.add([native_table(found)], {"native_ns": found})


def measure_plan(progress: Progress, plan: Plan) -> None:
    workload, found = measure(plan)
    progress.add([cost_table(workload, found)], {workload.name: found})


def main() -> None:
    torch.set_num_threads(1)
    progress = Progress("gpu_cost")
    with progress.part("native_costs"):
        measure_native(progress)
    for plan in chosen(PLANS):
        with progress.part(plan.make.__name__):
            measure_plan(progress, plan)


if __name__ == "__main__":
    main()
