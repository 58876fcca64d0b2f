"""The picture of `bench_scaling.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # no display needed

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

OUR_COLOR, BARE_COLOR = "#c2410c", "#94a3b8"


def plot_scaling(figures: Mapping[str, Any], path: Path) -> None:
    """Four panels: the cost of a module by number, by nesting and by threads, and
    memory over steps."""
    figure, panels = plt.subplots(1, 4, figsize=(14, 3.4), layout="constrained")
    axes: list[Axes] = list(panels)
    costs = ("modules", "nesting", "threads")
    titles = ("modules in the model", "depth of nesting", "threads that train")
    for panel, name, title in zip(axes, costs, titles, strict=False):
        draw_costs(panel, figures[name], title)
    highest = max(panel.get_ylim()[1] for panel in axes[: len(costs)])
    for panel in axes[: len(costs)]:
        panel.set_ylim(0, highest)
    axes[0].set_xscale("log")
    axes[0].set_ylabel("us per module and step")
    axes[0].legend(loc="upper left", frameon=False)
    axes[2].set_xticks([int(count) for count in figures["threads"]])
    draw_memory(axes[3], figures["memory"])
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_costs(
    panel: Axes, found: Mapping[str, Mapping[str, float]], title: str
) -> None:
    counts = [int(count) for count in found]
    bare = [costs["bare_us"] for costs in found.values()]
    added = [costs["added_us"] for costs in found.values()]
    panel.plot(counts, added, "o-", color=OUR_COLOR, label="profile() adds")
    panel.plot(counts, bare, "o-", color=BARE_COLOR, label="bare")
    panel.set_xlabel(title)
    panel.grid(axis="y", alpha=0.3)


def draw_memory(panel: Axes, memory: Mapping[str, list[float]]) -> None:
    millions = [steps / 1e6 for steps in memory["steps"]]
    panel.plot(millions, memory["grown_kib"], "o-", color=OUR_COLOR)
    # A scale on which a page more or less looks like what it is.
    top = max(1024, *memory["grown_kib"])
    panel.set_ylim(-0.03 * top, top)
    panel.set_xlabel("million steps with profile()")
    panel.set_ylabel("KiB more in memory")
    panel.grid(axis="y", alpha=0.3)
