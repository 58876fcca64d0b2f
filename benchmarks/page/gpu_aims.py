"""What `make gpu-check` is to show, and whether it does."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, Final

from results import Table

from page.aim import Aim, Figures, Values

#: Of each part of the check, what it has saved; None: nothing.
FiguresOf = Callable[[str], Figures | None]

COST, ACCURACY = "gpu_cost", "gpu_accuracy"
TESTS, PARTS, VERDICT = "gpu_tests", "gpu_parts", "gpu_verdict"


def ratio(workload: str, variant: str) -> Callable[[Figures], Values]:
    """Of the time of a step to that of the bare step."""
    return lambda figures: {"": figures["found"][workload][variant]["ratio"]}


def median_error(said: str) -> Callable[[Figures], Values]:
    """Of modules, in per cent, by workload.

    said: the time of the device that is compared with kernels.
    """

    def values(figures: Figures) -> Values:
        found: Values = {}
        for workload, rows in figures["found"].items():
            errors = [
                100 * abs(row[said] / row["kernels_us"] - 1)
                for row in rows
                if row[said] is not None
            ]
            if errors:
                found[workload] = median(errors)
        return found

    return values


def _failed_tests(figures: Figures) -> Values:
    """By file; of all together if none has failed, and only if there are any."""
    counts: Mapping[str, Mapping[str, int]] = figures["found"]
    failed = {name: float(each.get("failed", 0)) for name, each in counts.items()}
    return {name: count for name, count in failed.items() if count} or {
        f"of {sum(sum(each.values()) for each in counts.values())}": 0.0
    }


def _incomplete_parts(figures: Figures) -> Values:
    parts: Mapping[str, Any] = figures["found"]
    incomplete = {
        f"{name}: {each['status']}": 1.0
        for name, each in parts.items()
        if each["status"] != "done"
    }
    return incomplete or {f"of {len(parts)}": 0.0}


AIMS: Final = (
    Aim(
        "the small GPT-2 step takes at most 1.15 times the bare one",
        COST,
        ratio("GPT-2 small", "profile()"),
        1.15,
        show="{:.3f}",
    ),
    Aim(
        "the ResNet step of width 64 takes at most 1.05 times the bare one",
        COST,
        ratio("ResNet, width 64", "profile()"),
        1.05,
        show="{:.3f}",
    ),
    Aim(
        "the GPT-2 step of width 1024 takes at most 1.01 times the bare one",
        COST,
        ratio("GPT-2, width 1024", "profile()"),
        1.01,
        show="{:.3f}",
    ),
    Aim(
        "of modules with more than 100 us of kernels, the kernels of a traced step are "
        "at most 1 % off, in the median",
        ACCURACY,
        median_error("traced_us"),
        1,
        show="{:.1f} %",
    ),
    Aim(
        "... and stamps at most 3 %",
        ACCURACY,
        median_error("stamps_us"),
        3,
        show="{:.1f} %",
    ),
    Aim(
        "no test that needs a GPU fails",
        TESTS,
        _failed_tests,
        0,
        operator.le,
        "{:.0f}",
    ),
    Aim(
        "each part of the check comes to its end",
        PARTS,
        _incomplete_parts,
        0,
        operator.le,
        "{:.0f}",
    ),
)


def verdict_table(figures_of: FiguresOf) -> Table:
    """Each aim: met, missed, or not measured."""
    rows = []
    for aim in AIMS:
        text, measured, verdict = aim.row(figures_of(aim.file))
        is_known = bool(verdict)
        rows.append([text, measured if is_known else "", verdict or "not measured"])
    return Table("Verdict", ["aim", "measured", ""], rows)
