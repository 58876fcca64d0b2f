"""Pictures of `results/accuracy.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from page.plot_overhead import OUR_COLOR

RIGHT, WRONG, FAILED = "#bbf7d0", "#fca5a5", "#fde68a"
MEANINGS = {
    RIGHT: "within 10 %",
    WRONG: "wrong",
    FAILED: "the program fails",
}
TOLERANCE = 10.0
PHASE_COLORS = {"forward": "#0369a1", "backward": OUR_COLOR}


def plot_cases(figures: Mapping[str, Any], path: Path) -> None:
    """Every case and tool: how far off, in colors, forward beside backward."""
    cases, tools = figures["cases"], figures["tools"]
    by_phase = {
        phase: [tool for tool, found in tools.items() if f"{phase}_right" in found]
        for phase in PHASE_COLORS
    }
    figure, panels = plt.subplots(
        1,
        len(by_phase),
        figsize=(4 + 0.72 * sum(map(len, by_phase.values())), 2 + 0.3 * len(cases)),
        width_ratios=[len(having) for having in by_phase.values()],
        sharey=True,
        layout="constrained",
    )
    for axes, (phase, having) in zip(panels, by_phase.items(), strict=True):
        axes.set_title(phase, fontsize=12, pad=10)
        for row, by_tool in enumerate(cases.values()):
            for column, tool in enumerate(having):
                draw_cell(axes, row, column, by_tool[tool][phase])
        finish_grid(axes, having, list(cases))
    figure.legend(
        handles=[Patch(color=color, label=text) for color, text in MEANINGS.items()],
        loc="outside lower left",
        ncols=len(MEANINGS),
        frameon=False,
    )
    figure.suptitle("Planted work: how far off a tool is, for its worst module")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_cell(axes: Axes, row: int, column: int, said: float | str) -> None:
    """One tool's answer: an error in per cent, or the name of an exception."""
    if isinstance(said, str):
        color, text = FAILED, "fails"
    else:
        color = RIGHT if abs(said) <= TOLERANCE else WRONG
        text = f"{said:+.0f} %"
    axes.add_patch(
        Rectangle((column, row), 1, 1, facecolor=color, edgecolor="white", lw=2)
    )
    axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=8)


def finish_grid(axes: Axes, tools: list[str], cases: list[str]) -> None:
    axes.set_xlim(0, len(tools))
    axes.set_ylim(len(cases), 0)
    names = [tool.replace(" ", "\n", 1) for tool in tools]
    axes.set_xticks([i + 0.5 for i in range(len(tools))], names)
    axes.tick_params(axis="x", rotation=40, labelsize=8, length=0)
    plt.setp(axes.get_xticklabels(), ha="right", rotation_mode="anchor")
    axes.set_yticks([i + 0.5 for i in range(len(cases))], cases, fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.spines[:].set_visible(False)


def plot_kineto(figures: Mapping[str, Any], path: Path) -> None:
    """A panel for each model: own times of its modules, ours over Kineto's."""
    found = figures["kineto"]
    columns = 3
    rows = -(-len(found) // columns)
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(11, 0.8 + 3.6 * rows),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    times_ms = [time for by in found.values() for m in by["modules"] for time in m[2:]]
    limits = (0.7 * min(times_ms), 1.4 * max(times_ms))
    panels = list(grid.flat)
    for axes, (model, by) in zip(panels, found.items(), strict=False):
        draw_times(axes, by["modules"], limits)
        axes.set_title(model, fontsize=11)
    for axes in panels[len(found) :]:
        axes.set_axis_off()
    panels[0].legend(fontsize=9, frameon=False)
    figure.supxlabel("Kineto, ms per step", fontsize=10)
    figure.supylabel("profile(), ms per step", fontsize=10)
    figure.suptitle("Own times of modules in the same steps, by profile() and Kineto")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_times(
    axes: Axes, modules: Sequence[Sequence[Any]], limits: tuple[float, float]
) -> None:
    """modules: for each its name, the phase, the time by us and by Kineto."""
    axes.plot(limits, limits, color="#94a3b8", linewidth=1, zorder=1)
    for phase, color in PHASE_COLORS.items():
        mine = [module for module in modules if module[1] == phase]
        axes.scatter(
            [true_ms for _, _, _, true_ms in mine],
            [ours_ms for _, _, ours_ms, _ in mine],
            s=24,
            color=color,
            alpha=0.6,
            linewidths=0,
            label=phase,
            zorder=2,
        )
    axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits, aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    axes.spines[["top", "right"]].set_visible(False)
