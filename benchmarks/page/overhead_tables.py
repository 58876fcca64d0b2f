"""Tables of what `bench_overhead.py` found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from results import Table

BARE = "bare"

#: By tool: ratio, quartiles and us_per_module; or why there are none.
Figures = dict[str, dict[str, Any]]

NOTES = (
    "Medians of the ratios of turns to the bare turn of the same round, ± half of the "
    "distance between their quartiles. `profile(max_overhead=0.01)` looks "
    "into some of the steps, all others into every step.",
    '"with its table": with starting, stopping and `key_averages()`, for turns of '
    "few steps; what other tools do before and after the steps is not in their times.",
    "Lightning's profilers are told of two actions around a step, where a Trainer "
    "reports some more; its PyTorchProfiler records every step. pytorch_memlab has no "
    "line profiler on a CPU: its memory reporter is called once after each step. "
    "torchprof and DeepSpeed's profiler look at forwards only.",
    "Chainer's hooks are compared with the bare step of the same chain of layers in "
    "Chainer. Its TimerHook of links looks at forwards only.",
)


def ratio_table(workloads: Mapping[str, Figures], versions: Mapping[str, str]) -> Table:
    def cell(found: Mapping[str, Any]) -> str:
        low, high = found["quartiles"]
        digits = 3 if found["ratio"] < 10 else 1
        return f"{found['ratio']:.{digits}f} ± {(high - low) / 2:.{digits}f}"

    bare = [f"{found[BARE]['ms_per_step']:.1f}" for found in workloads.values()]
    rows = [["bare step, ms", *bare], *rows_of(workloads, cell)]
    title = "Time of a training step with a tool, as a ratio to the bare step"
    listed = ", ".join(f"{name} {number}" for name, number in versions.items())
    notes = [*NOTES, *failures(workloads), f"Versions: {listed}."]
    return Table(title, ["", *workloads], rows, notes)


def added_table(workloads: Mapping[str, Figures], modules: Sequence[int]) -> Table:
    rows = [
        ["module calls in a step", *(str(count) for count in modules)],
        *rows_of(workloads, lambda found: f"{found['us_per_module']:.1f}"),
    ]
    title = "Microseconds added per module call of a training step"
    note = "What a step varies by is divided by its few module calls in the LSTM."
    return Table(title, ["", *workloads], rows, [note])


def rows_of(
    workloads: Mapping[str, Figures], cell: Callable[[Mapping[str, Any]], str]
) -> list[list[str]]:
    """A row for each tool, in the order in which they first appear."""
    names = dict.fromkeys(name for found in workloads.values() for name in found)
    rows = []
    for name in names:
        if name == BARE:
            continue
        row = [name]
        for figures in workloads.values():
            found = figures.get(name, {})
            why = "fails" if "fails" in found else "not there" if found else "-"
            row.append(cell(found) if "ratio" in found else why)
        rows.append(row)
    return rows


def failures(workloads: Mapping[str, Figures]) -> list[str]:
    """A sentence for each tool and reason."""
    found: dict[str, list[str]] = {}
    for workload, figures in workloads.items():
        for tool, figure in figures.items():
            for word in ("fails", "missing"):
                if word in figure:
                    reason = f"{tool} {word}: `{figure[word]}`"
                    found.setdefault(reason, []).append(workload)
    return [f"{reason} ({', '.join(where)})." for reason, where in found.items()]
