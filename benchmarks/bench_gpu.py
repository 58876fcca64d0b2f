"""On a CUDA device: times of modules next to those of their kernels, and what it costs.

Target: within 2 % of Kineto's kernel times on modules that take more than 100 us. Both
are of the same steps, since kernels do not take the same time twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

import kernel_times
import results
import torch
import torch.nn.functional as F
from bench import Variant, compare, result_name, rounds, times_table
from models import (
    GPT2,
    ResNet,
    Workload,
    gpt2_small,
    language_model,
    resnet,
    training,
)
from results import Table

from torchprof_hooks import Profile, profile
from torchprof_hooks.measure.allocator_counter import AllocatorCounter
from torchprof_hooks.measure.device_clock import EventClock

#: Modules whose kernels take less are not compared: gaps between kernels are no part of
#: them, but of the time between two stamps.
LEAST_US: Final = 100.0
#: Steps that are compared.
STEPS: Final = 10
#: In all, for the overhead of one workload, about.
SECONDS: Final = 20.0
#: About a fifth of a second: long enough for the host to launch a step.
SLEEP_CYCLES: Final = 400_000_000
ROWS_SHOWN: Final = 10
FURTHEST_SHOWN: Final = 6


class Comparison(NamedTuple):
    """One module in one phase; microseconds per step."""

    name: str
    phase: str
    kernels_us: float
    found_us: float

    @property
    def error(self) -> float:
        """What was found too much, as a share."""
        return self.found_us / self.kernels_us - 1


def large_gpt2() -> Workload:
    """8 layers of width 1024: kernels take longer than launching them."""
    return language_model("GPT-2, width 1024", GPT2(1024, 8, 16), (128, 64), "cuda")


def large_resnet() -> Workload:
    """20 layers, on 256 pictures."""
    model = ResNet(64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    pictures = torch.randn(256, 3, 32, 32, device="cuda")
    labels = torch.randint(0, 10, (256,), device="cuda")
    return training(
        "ResNet, width 64",
        model,
        optimizer,
        lambda: F.cross_entropy(model(pictures), labels),
    )


def compared(workload: Workload, steps: int) -> list[Comparison]:
    """Our times of a workload's modules, and those of their kernels."""

    def step() -> None:
        # So that the device never waits for the host.
        torch.cuda._sleep(SLEEP_CYCLES)  # type: ignore[no-untyped-call]
        workload.step()

    step()
    torch.cuda.synchronize()
    with kernel_times.trace(workload.model) as traced, profile() as prof:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    return comparisons(traced.by_module(), prof.profile, steps)


def comparisons(
    truth: kernel_times.Sums, found: Profile, steps: int
) -> list[Comparison]:
    """Of the modules that take long enough, the longest first."""
    device_ns = {
        (row.name, phase): totals.device_self_ns
        for row in found.rows()
        for phase, totals in row.phases.items()
    }
    all_of_them = [
        Comparison(name, phase, us / steps, device_ns[name, phase] / 1000 / steps)
        for (name, phase), us in truth.items()
        if name
    ]
    long = [found for found in all_of_them if found.kernels_us >= LEAST_US]
    return sorted(long, key=lambda found: -found.kernels_us)


def accuracy_table(workload: str, found: Sequence[Comparison]) -> Table:
    """The longest, those that are furthest off, and how far off all of them are."""
    longest, others = found[:ROWS_SHOWN], found[ROWS_SHOWN:]
    furthest = sorted(others, key=lambda c: -abs(c.error))[:FURTHEST_SHOWN]
    rows = [
        [c.name, c.phase, f"{c.kernels_us:.0f}", f"{c.found_us:.0f}", f"{c.error:+.1%}"]
        for c in (*longest, *furthest)
    ]
    errors = sorted(abs(c.error) for c in found)
    notes = []
    if errors:
        within = sum(error <= 0.02 for error in errors)
        notes.append(
            f"{len(errors)} modules and phases with at least {LEAST_US:.0f} us of "
            f"kernels per step, of which the {len(longest)} longest are shown and the "
            f"{len(furthest)} others that are furthest off: "
            f"{within} are within 2 %, the median error is {median(errors):.1%}, the "
            f"largest {errors[-1]:.1%}."
        )
    headers = ["module", "phase", "kernels, us", "device time, us", "error"]
    return Table(f"Device time of modules: {workload}", headers, rows, notes)


def cost_table() -> tuple[Table, dict[str, float]]:
    """Nanoseconds of the host for the single things that are done in the loop."""
    torch.ones(1, device="cuda")
    clock, counter = EventClock(), AllocatorCounter()
    done = clock.stamp()
    torch.cuda.synchronize()
    asked: dict[str, Callable[[], object]] = {
        "a stamp (an event that is used again)": clock.stamp,
        "asking whether a stamp is done": lambda: clock.is_done(_there(done)),
        "time between two stamps": lambda: clock.elapsed_ns(_there(done), _there(done)),
        "a reading of the memory counters": counter.read,
    }
    found = {name: cost_ns(call) for name, call in asked.items()}
    rows = [[name, f"{nanoseconds:.0f}"] for name, nanoseconds in found.items()]
    return Table("What is done in the loop", ["", "ns"], rows), found


def cost_ns(call: Callable[[], object], calls: int = 100) -> float:
    """Of one call: the median of some batches, between which the device catches up."""
    batches = []
    for _ in range(rounds(20)):
        torch.cuda.synchronize()
        start_ns = perf_counter_ns()
        for _ in range(calls):
            call()
        batches.append((perf_counter_ns() - start_ns) / calls)
    return median(batches)


def _there(stamp: Any) -> Any:
    assert stamp is not None
    return stamp


def going_on(**options: Any) -> Variant:
    """One profile, in all turns."""
    said = ", ".join(f"{name}={value}" for name, value in options.items())
    prof = profile(**options)
    return Variant(f"profile({said})", lambda: prof)


def overhead(workload: Workload) -> tuple[Table, dict[str, float]]:
    """What measuring adds to a step that the device has ended, too. A profile goes on
    from turn to turn: its rows are made in the first one, which does not count."""
    options: tuple[dict[str, Any], ...] = ({}, {"memory": True}, {"functions": True})
    variants = [Variant("bare"), *(going_on(**each) for each in options)]
    step_ns = cost_ns(workload.step, calls=2)
    turns = min(100, max(10, round(SECONDS * 1e9 / step_ns / len(variants))))
    times = compare(workload.step, variants, turns)
    table = times_table(
        f"A step: {workload.name}",
        times,
        scale=1e-3,
        unit="us",
        baseline="bare",
        count=workload.modules,
    )
    bare = median(times["bare"])
    return table, {name: median(values) / bare for name, values in times.items()}


def main() -> None:
    if not torch.cuda.is_available():
        print("bench_gpu.py: there is no CUDA device; nothing was measured")
        return
    torch.set_num_threads(1)
    tables: list[Table] = []
    figures: dict[str, Any] = {"errors": {}, "ratios": {}}
    for make in (large_gpt2, large_resnet):
        workload = make()
        found = compared(workload, rounds(STEPS))
        tables.append(accuracy_table(workload.name, found))
        figures["errors"][workload.name] = [c.error for c in found]
        table, ratios = overhead(workload)
        tables.append(table)
        figures["ratios"][workload.name] = ratios
    for workload in (gpt2_small("cuda"), resnet("cuda")):
        table, ratios = overhead(workload)
        tables.append(table)
        figures["ratios"][workload.name] = ratios
    table, figures["costs_ns"] = cost_table()
    results.save(result_name("gpu"), [*tables, table], figures)


if __name__ == "__main__":
    main()
