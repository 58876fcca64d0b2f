"""Pictures of results, made from the figures in `results/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # no display needed

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

OURS = "torchprof_hooks "
OUR_COLOR, PEER_COLOR = "#c2410c", "#94a3b8"
COLUMNS = 4
LEGEND = [
    Patch(color=OUR_COLOR, label="torchprof_hooks"),
    Patch(color=PEER_COLOR, label="other tools"),
    Line2D([], [], color="black", linewidth=1, label="quartiles of the ratio"),
]


def plot_overhead(figures: Mapping[str, Any], path: Path) -> None:
    """A panel for each workload, with a bar for each tool: the ratio to the bare step,
    on a logarithmic scale, and its quartiles."""
    workloads = figures["workloads"]
    names = [
        name
        for name in dict.fromkeys(
            name for found in workloads.values() for name in found
        )
        if not name.startswith(("bare", "Chainer"))
    ]
    rows = -(-len(workloads) // COLUMNS)
    figure, grid = plt.subplots(
        rows,
        COLUMNS,
        figsize=(14, 0.9 + rows * (0.7 + 0.26 * len(names))),
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    panels = list(grid.flat)
    for panel, (title, found) in zip(panels, workloads.items(), strict=False):
        panel.set_title(f"{title} ({found['bare']['ms_per_step']:.1f} ms)", fontsize=10)
        draw_ratios(panel, names, found)
    for panel in panels[len(workloads) :]:
        panel.set_axis_off()
    figure.legend(handles=LEGEND, loc="lower right", fontsize=9, frameon=False)
    figure.suptitle("Time of a training step, as a ratio to the bare step")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_ratios(
    panel: Axes, names: Sequence[str], found: Mapping[str, Mapping[str, Any]]
) -> None:
    for place, name in enumerate(names):
        figure = found.get(name, {})
        if "ratio" not in figure:
            why = "fails" if "fails" in figure else "not there"
            panel.text(1.06, place, why, va="center", fontsize=8, style="italic")
            continue
        ratio, (low, high) = figure["ratio"], figure["quartiles"]
        color = OUR_COLOR if name.startswith(OURS) else PEER_COLOR
        panel.barh(place, max(ratio - 1, 0), left=1, color=color, height=0.7)
        panel.hlines(place, max(low, 1), max(high, 1), color="black", linewidth=1)
        text = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
        panel.text(max(ratio, high, 1) * 1.06, place, text, va="center", fontsize=8)
    panel.set_xscale("log")
    panel.set_xlim(1, 400)
    ticks = [1, 2, 5, 10, 20, 50, 100, 200]
    panel.set_xticks(ticks, [str(tick) for tick in ticks], fontsize=8)
    panel.minorticks_off()
    panel.tick_params(labelbottom=True, length=0)
    panel.grid(axis="x", color="#e5e7eb", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.set_yticks(range(len(names)), names, fontsize=8)
    panel.set_ylim(len(names) - 0.5, -0.5)
    panel.spines[["top", "right"]].set_visible(False)
