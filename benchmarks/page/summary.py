"""The opening table of the benchmarks: ours and each peer, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import results
from results import Table

EVERY_STEP: Final = "torchprof_hooks profile()"
WITH_FUNCTIONS: Final = "torchprof_hooks profile(functions=True)"

WHOLE_PROGRAM: Final = "torchprof_hooks whole program"
BUDGETED: Final = "torchprof_hooks --max-overhead 0.01"

#: Tools, and what they give times (or else) of.
TOOLS: Final = {
    EVERY_STEP: "forward, backward",
    WITH_FUNCTIONS: "forward, backward",
    WHOLE_PROGRAM: "some steps of these",
    BUDGETED: "some steps of these",
    "full backward hooks": "forward, backward",
    "ModuleTracker": "(names, no times)",
    "FlopCounterMode": "(FLOPs)",
    "torch.profiler": "operators, forward",
    "torchprof": "forward",
    "DeepSpeed flops profiler": "forward",
    "Lightning PyTorchProfiler": "operators, forward",
    "Lightning SimpleProfiler": "whole steps",
    "pytorch_memlab": "(memory)",
}
#: Workloads of which the opening table shows the overhead, with a short name.
SHOWN: Final = {
    "GPT-2 small": "GPT-2 small",
    "ResNet": "ResNet",
    "transformers Llama": "Llama",
}
NONE: Final = "-"

_Figures = Mapping[str, Any]


def summary(figures_of: Callable[[str], _Figures | None]) -> Table:
    """The table; what was not measured is left blank.

    figures_of: gives the figures of a benchmark, or None if it has not been run.
    """
    overhead, accuracy, coverage, budgets = (
        figures_of(name) or {}
        for name in ("overhead", "accuracy", "coverage", "budgets")
    )
    # The few steps that these look into tell only in long runs.
    in_long_runs = {
        tool: {
            name: 1 + found["variants"][variant]["wall"][0]
            for name, found in budgets.items()
            if variant in found["variants"]
        }
        for tool, variant in ((WHOLE_PROGRAM, "default"), (BUDGETED, "0.01"))
    }
    headers = [
        "",
        "gives times of",
        *(f"step, {name}" for name in SHOWN.values()),
        "us per module call",
        "forward right",
        "backward right",
        "forward owned",
        "backward owned",
    ]
    rows = [
        [
            tool,
            what,
            *(
                _ratios_of_long_runs(in_long_runs[tool])
                if tool in in_long_runs
                else _ratios(overhead, tool)
            ),
            *_right(accuracy, tool),
            *_covered(coverage, tool),
        ]
        for tool, what in TOOLS.items()
    ]
    notes = [_note(accuracy), _agreement(accuracy)]
    return Table("", headers, rows, notes)


def _ratios(overhead: _Figures, tool: str) -> Iterator[str]:
    workloads = overhead.get("workloads", {})
    for name in SHOWN:
        found = workloads.get(name, {}).get(tool, {})
        ratio = found.get("ratio")
        yield f"{ratio:.2f}" if ratio else "fails" if "fails" in found else NONE
    added = workloads.get("GPT-2 small", {}).get(tool, {}).get("us_per_module")
    yield NONE if added is None else f"{added:.0f}"


def _ratios_of_long_runs(found: Mapping[str, float]) -> Iterator[str]:
    for name in SHOWN:
        ratio = found.get(name)
        yield f"{ratio:.2f}" if ratio else NONE
    yield NONE  # of module calls, most are in steps that are not looked into


def _right(accuracy: _Figures, tool: str) -> Iterator[str]:
    found = accuracy.get("tools", {}).get(tool, {})
    for phase in ("forward", "backward"):
        right = found.get(f"{phase}_right")
        yield NONE if right is None else f"{right} of {found['cases']}"


def _covered(coverage: _Figures, tool: str) -> Iterator[str]:
    """Of GPT-2 small, and the least of all models."""
    suffix = {EVERY_STEP: "", WITH_FUNCTIONS: "_with_functions"}.get(tool)
    for phase in ("forward", "backward"):
        if suffix is None or not coverage:
            yield NONE
            continue
        key = phase + suffix
        least = min(figures[key] for figures in coverage.values())
        yield f"{100 * coverage['GPT-2 small'][key]:.0f} % ({100 * least:.0f} %)"


def _note(accuracy: _Figures) -> str:
    cases = len(accuracy.get("cases", {}))
    return (
        "**Step**: time of a training step with the tool, as a ratio to that without "
        "(differences below 0.02 are noise); of what looks into some steps alone, "
        "that of a whole program ([a budget](#a-budget)). **us per module call**: what "
        f"that is for each of GPT-2 small's. **Right**: of {cases} "
        "small programs, picked because they are hard for some tool, those in which "
        "each module's time (or FLOPs) is within 10 % of the work planted in it, in "
        "the best of up to five tries; an exception is not right. These counts do not "
        "tell how often a tool is wrong in practice. ModuleTracker says where the "
        "program is, and the benchmark reads the clock; torch.profiler is asked with "
        "`with_stack=True`, which costs more than what is shown here. **Owned**: "
        "share of the time of forward and backward that modules (or functions) own, "
        "of GPT-2 small, and in the model with the smallest; in backward, with the "
        "row of the autograd engine's own beginning. A dash: there is no such number, "
        "or it was not asked for."
    )


def _agreement(accuracy: _Figures) -> str:
    models = accuracy.get("kineto", {}).values()
    if not models:
        return "Agreement with Kineto was not measured."
    worst = max(figures["backward_median_error"] for figures in models)
    return (
        "In backward, own times of modules by `profile()` are "
        f"{worst:.1f} % or less from those of Kineto's events, recorded in the same "
        "steps: medians over the modules of each model."
    )


def provenance() -> str:
    """When and where the results were measured, in one line."""
    machine = results.load("overhead")["machine"]
    versions = results.load("overhead")["figures"].get("versions", {})
    # Those of Chainer's own environment come last.
    names = [name for name in versions if name not in ("torch", "numpy", "python")]
    listed = ", ".join(f"{name} {versions[name]}" for name in names)
    return (
        f"Measured on {machine['date']} with torch {machine['torch']}, Python "
        f"{machine['python']}, {machine['threads']} thread of {machine['cores']} cores "
        f"({machine['processor']}, {machine['system']}); {listed}, the last in an "
        "environment of its own."
    )
