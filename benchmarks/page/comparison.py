"""The table of both READMEs: ours and other tools, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import results
from results import Table

SOME_STEPS: Final = "torchprof_hooks profile(every=100, steps=1)"
#: Tools, and what they give times (or else) of.
TOOLS: Final = {
    "torchprof_hooks profile()": "forward, backward",
    "torchprof_hooks profile(functions=True)": "forward, backward",
    SOME_STEPS: "the same, of some steps",
    "full backward hooks": "forward, backward",
    "ModuleTracker": "(names, no times)",
    "FlopCounterMode": "(FLOPs)",
    "torch.profiler": "operators, forward",
    "torchprof": "forward",
    "DeepSpeed flops profiler": "forward",
}
#: Of which the table shows the overhead.
WORKLOAD: Final = "GPT-2 small"
NONE: Final = "-"

_Figures = Mapping[str, Any]


def comparison(figures_of: Callable[[str], _Figures | None]) -> Table:
    """The table; what was not measured is left blank.

    figures_of: gives the figures of a benchmark, or None if it has not been run.
    """
    overhead, accuracy, some_steps = (
        figures_of(name) or {} for name in ("overhead", "accuracy", "some_steps")
    )
    steps = overhead.get("workloads", {}).get(WORKLOAD, {})
    of_some = some_steps.get(WORKLOAD, {}).get("profile(every=100, steps=1)", {})
    steps = {**steps, SOME_STEPS: of_some}
    headers = ["", "gives times of", "step", "forward right", "backward right"]
    rows = [
        [tool, what, _step(steps.get(tool, {})), *_right(accuracy, tool)]
        for tool, what in TOOLS.items()
    ]
    return Table("", headers, rows)


def _step(found: _Figures) -> str:
    if ratio := found.get("ratio"):
        return f"{ratio:.2f}"
    return "fails" if "fails" in found else NONE


def _right(accuracy: _Figures, tool: str) -> Iterator[str]:
    found = accuracy.get("tools", {}).get(tool, {})
    for phase in ("forward", "backward"):
        right = found.get(f"{phase}_right")
        yield NONE if right is None else f"{right} of {found['cases']}"


def provenance() -> str:
    """When and where the results were measured, in one line."""
    machine = results.load("overhead")["machine"]
    versions = results.load("overhead")["figures"].get("versions", {})
    listed = ", ".join(f"{name} {versions[name]}" for name in versions)
    return (
        f"Measured on {machine['date']} with Python {machine['python']}, "
        f"{machine['threads']} thread of {machine['cores']} cores "
        f"({machine['processor']}, {machine['system']}); {listed}."
    )
