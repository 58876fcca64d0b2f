"""The opening table of the benchmarks: ours and each peer, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import results
from results import Table

EVERY_STEP: Final = "torchprof_hooks profile()"
BUDGETED: Final = "torchprof_hooks profile(max_overhead=0.01)"

#: Tools of the opening table; others are in that of their benchmark.
TOOLS: Final = (
    EVERY_STEP,
    BUDGETED,
    "torchprof_hooks profile(functions=True)",
    "torchprof_hooks whole program",
    "torch.profiler",
    "full backward hooks",
    "ModuleTracker",
    "FlopCounterMode",
    "torchprof",
    "DeepSpeed flops profiler",
    "pytorch_memlab",
    "Lightning SimpleProfiler",
    "Lightning PyTorchProfiler",
)
#: Workloads of which the opening table shows the overhead, with a short name.
SHOWN: Final = {
    "GPT-2 small": "GPT-2 small",
    "ResNet": "ResNet",
    "transformers Llama": "Llama",
}
NONE: Final = "-"

_Figures = Mapping[str, Any]


def summary(directory_has: Callable[[str], _Figures | None]) -> Table:
    """The table; what was not measured is left blank.

    directory_has: gives the figures of a benchmark, or None if it has not been run.
    """
    overhead, accuracy, coverage = (
        directory_has(name) or {} for name in ("overhead", "accuracy", "coverage")
    )
    headers = [
        "",
        *(f"step, {name}" for name in SHOWN.values()),
        "us per module",
        "forward right",
        "backward right",
        "own times, off by",
        "forward attributed",
        "backward attributed",
    ]
    rows = [
        [
            tool,
            *_ratios(overhead, tool),
            *_right(accuracy, tool),
            _deviation(accuracy, tool),
            *_covered(coverage, tool),
        ]
        for tool in TOOLS
    ]
    return Table("", headers, rows, [_note(accuracy)])


def _ratios(overhead: _Figures, tool: str) -> Iterator[str]:
    workloads = overhead.get("workloads", {})
    for name in SHOWN:
        found = workloads.get(name, {}).get(tool, {})
        ratio = found.get("ratio")
        yield f"{ratio:.3f}" if ratio else "fails" if "fails" in found else NONE
    added = workloads.get("GPT-2 small", {}).get(tool, {}).get("us_per_module")
    yield NONE if added is None else f"{added:.1f}"


def _right(accuracy: _Figures, tool: str) -> Iterator[str]:
    found = accuracy.get("tools", {}).get(tool, {})
    for phase in ("forward", "backward"):
        right = found.get(f"{phase}_right")
        yield NONE if right is None else f"{right} of {found['cases']}"


def _deviation(accuracy: _Figures, tool: str) -> str:
    """Of ours: there is no other with own times of modules in forward and backward."""
    models = accuracy.get("kineto", {}).values()
    if tool != EVERY_STEP or not models:
        return NONE
    worst = [
        max(figures[f"{phase}_median_error"] for figures in models)
        for phase in ("forward", "backward")
    ]
    return " / ".join(f"{error:.1f} %" for error in worst)


def _covered(coverage: _Figures, tool: str) -> Iterator[str]:
    """Of GPT-2 small, and the least of all models."""
    functions = {
        EVERY_STEP: "",
        "torchprof_hooks profile(functions=True)": "_with_functions",
    }
    suffix = functions.get(tool)
    for phase in ("forward", "backward"):
        if suffix is None or not coverage:
            yield NONE
            continue
        key = phase + suffix
        least = min(figures[key] for figures in coverage.values())
        yield f"{100 * coverage['GPT-2 small'][key]:.1f} % ({100 * least:.1f} %)"


def _note(accuracy: _Figures) -> str:
    cases = len(accuracy.get("cases", {}))
    return (
        "Step: time of a training step, as a ratio to the bare one; us per module: "
        "what is added to each module call of GPT-2 small. Right: so many small "
        f"programs with planted work, of {cases}, in which the time (or FLOPs) of each "
        "module is; a dash: there is no such number. Off by: median difference of "
        "modules' own times in forward and backward from those of Kineto's events, of "
        "the model in which it is largest. Attributed: share of the time of forward "
        "and backward that modules (or functions) own, of GPT-2 small, and of the "
        "model with the smallest."
    )


def provenance() -> str:
    """When and where the results were measured, in one line."""
    machine = results.load("overhead")["machine"]
    versions = results.load("overhead")["figures"].get("versions", {})
    listed = ", ".join(
        f"{name} {number}" for name, number in versions.items() if name != "torch"
    )
    return (
        f"Measured on {machine['date']} with torch {machine['torch']}, Python "
        f"{machine['python']}, {machine['threads']} thread of {machine['cores']} cores "
        f"({machine['processor']}, {machine['system']}); {listed}."
    )
