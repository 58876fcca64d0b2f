"""Times of modules on a GPU, next to those of their kernels in the same steps, and why
these differ where they do (see gpu_reasons.py).

Both are of the same steps, since kernels do not take the same time twice. The host is
ahead of the device, as far as the program lets it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from statistics import median
from typing import Any, Final, NamedTuple

import kernel_times
import torch
from bench import device, rounds, wait
from bench_overhead import quiet_stderr
from gpu_reasons import TOLERANCE, Interval, find_intervals, reason
from gpu_results import Progress, chosen
from kernel_times import Owner
from models import Workload, gpt2_large, gpt2_small, resnet, resnet_large
from results import Cell, Table

from torchprof_hooks import Profile, profile

#: Modules whose kernels take less are not compared: gaps between kernels are no part of
#: them, but of the time between two stamps.
LEAST_US: Final = 100.0
#: Steps that are compared: the first ones of a profile, which are all stamped.
STEPS: Final = 7
#: About a fifth of a second: long enough for the host to launch a step.
SLEEP_CYCLES: Final = 400_000_000

WORKLOADS: Final[Sequence[Callable[[str], Workload]]] = (
    gpt2_large,
    resnet_large,
    gpt2_small,
    resnet,
)
HEADERS: Final = (
    "module",
    "phase",
    "kernels",
    "kernels, us",
    "by stamps, us",
    "off",
    "of traced step, us",
    "off",
    "why stamps are off",
)


class Comparison(NamedTuple):
    """One module in one phase, in a step.

    interval: what is between its stamps, as Kineto tells it.
    stamps_us: its own time on the device, as `profile()` tells it.
    traced_us: that of its kernels, as `profile(kernels=True)` tells it; None: it is
        not told.
    """

    owner: Owner
    interval: Interval
    stamps_us: float
    traced_us: float | None = None

    @property
    def kernels_us(self) -> float:
        return self.interval.kernels_ns / 1000

    @property
    def error(self) -> float:
        """What stamps say too much, as a share."""
        return self.stamps_us / self.kernels_us - 1

    @property
    def traced_error(self) -> float | None:
        """The same of the kernels in the traced step."""
        return None if self.traced_us is None else self.traced_us / self.kernels_us - 1

    @property
    def reason(self) -> str:
        """Why stamps are off; "" if they are not."""
        return reason(self.stamps_us * 1000, self.interval)

    def row(self) -> list[Cell]:
        traced = ["", ""]
        if self.traced_us is not None and self.traced_error is not None:
            traced = [f"{self.traced_us:.0f}", f"{self.traced_error:+.1%}"]
        return [
            *self.owner,
            self.interval.kernels,
            f"{self.kernels_us:.0f}",
            f"{self.stamps_us:.0f}",
            f"{self.error:+.1%}",
            *traced,
            self.reason,
        ]

    def figures(self) -> dict[str, Any]:
        """What results files have of it."""
        return {
            "module": self.owner.module,
            "phase": self.owner.phase,
            "kernels": self.interval.kernels,
            "kernels_us": round(self.kernels_us, 3),
            "stamps_us": round(self.stamps_us, 3),
            "traced_us": self.traced_us,
            "reason": self.reason,
        }


def compared(workload: Workload, steps: int) -> list[Comparison]:
    """Our times of a workload's modules, and those of their kernels."""

    def step() -> None:
        hold_device()
        workload.step()

    step()
    wait()
    with kernel_times.trace(workload.model) as traced, profile() as prof:
        for _ in range(steps):
            step()
        wait()
    intervals = find_intervals(traced.activities(), traced.timeline())
    by_kernels = traced_kernels_us(step)
    return comparisons(intervals, stamps_us(prof.profile), by_kernels, steps)


def hold_device() -> None:
    """Keep the device busy, so that it does not wait for the host in what follows."""
    torch.cuda._sleep(SLEEP_CYCLES)  # type: ignore[no-untyped-call]


def stamps_us(found: Profile) -> dict[tuple[str, str], float]:
    """Microseconds of the device in each row alone, by phase."""
    return {
        (row.name, phase): totals.device_self_ns / 1000
        for row in found.rows()
        for phase, totals in row.phases.items()
    }


def traced_kernels_us(
    step: Callable[[], None],
) -> Mapping[tuple[str, str], float] | None:
    """Microseconds of kernels in the step that `profile(kernels=True)` traces; None
    where there is no such option, or it has traced no step."""
    try:
        options: dict[str, Any] = {"kernels": True}
        prof: AbstractContextManager[Any] = profile(**options)
    except TypeError:
        return None
    with prof as found:
        for _ in range(6):  # of which one is traced
            step()
        wait()
    return kernel_rows_us(found.profile)


def kernel_rows_us(found: Any) -> Mapping[tuple[str, str], float] | None:
    """The same, of a profile."""
    traced = getattr(found, "device_step", None)
    if traced is None or traced.reason:
        print(f"No step was traced: {getattr(traced, 'reason', 'no reason is known')}")
        return None
    sums: dict[tuple[str, str], float] = {}
    for use in traced.devices:
        for row in use.kernels:
            key = row.module, row.phase
            sums[key] = sums.get(key, 0.0) + row.busy_ns / 1000
    return sums


def comparisons(
    intervals: Mapping[Owner, Interval],
    stamps: Mapping[tuple[str, str], float],
    traced: Mapping[tuple[str, str], float] | None,
    steps: int,
) -> list[Comparison]:
    """Of the modules that take long enough, the longest first.

    intervals, stamps: of so many steps.
    traced: of one step.
    """
    all_of_them = [
        Comparison(
            owner,
            interval.per_step(steps),
            stamps.get(owner, 0.0) / steps,
            None if traced is None else traced.get(owner, 0.0),
        )
        for owner, interval in intervals.items()
        if owner.module
    ]
    long = [found for found in all_of_them if found.kernels_us >= LEAST_US]
    return sorted(long, key=lambda found: -found.kernels_us)


def accuracy_table(workload: str, found: Sequence[Comparison]) -> Table:
    """All modules, and how far off all of them are."""
    notes = []
    if found:
        errors = sorted(abs(each.error) for each in found)
        within = sum(error <= TOLERANCE for error in errors)
        notes.append(
            f"{len(errors)} modules and phases with at least {LEAST_US:.0f} us of "
            f"kernels per step: {within} are within 2 % by stamps, the median error is "
            f"{median(errors):.1%}, the largest {errors[-1]:.1%}."
        )
    title = f"Device time of modules: {workload}"
    return Table(title, HEADERS, [each.row() for each in found], notes)


def main() -> None:
    torch.set_num_threads(1)
    progress = Progress("gpu_accuracy")
    for make in chosen(WORKLOADS):
        with progress.part(make.__name__), quiet_stderr():
            workload = make(device())
            found = compared(workload, rounds(STEPS))
            progress.add(
                [accuracy_table(workload.name, found)],
                {workload.name: [each.figures() for each in found]},
            )


if __name__ == "__main__":
    main()
