"""The own times of a profile as stacks, for speedscope, which draws flame graphs."""

from __future__ import annotations

import json
from typing import Any, Final

from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import MODULE_PHASES

_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"

#: The graph of all that is in no phase of a module: optimizers, data, the profiler, ...
_OTHER: Final = "other"

#: The numbers of frames, the outer one first, and their own time.
_Stack = tuple[list[int], int]


def render_speedscope(profile: ProfileData) -> str:
    """A file for https://www.speedscope.app, a viewer of flame graphs, in the format of
    its ``file-format-schema.json``. It has a graph in nanoseconds for each of
    "forward", "backward", "recompute" and "other" that took time; the viewer has a menu
    of them at the top.

    Times of 0 are left out; so are those below 0, which no flame graph can show. (Such
    times occur only in a profile that was read while calls were open.)

    Example::

        {"$schema": "https://www.speedscope.app/file-format-schema.json",
         "shared": {"frames": [{"name": "Net"}, {"name": "Net.fc"}]},
         "profiles": [{"type": "sampled", "name": "forward", "unit": "nanoseconds",
                       "startValue": 0, "endValue": 51000,
                       "samples": [[0], [0, 1]], "weights": [1000, 50000]}, ...],
         ...}
    """
    graphs: dict[str, list[_Stack]] = {name: [] for name in (*MODULE_PHASES, _OTHER)}
    frames: dict[str, int] = {}
    names: list[str] = []
    for depth, node in profile.only_measured.tree(functions=True).walk():
        names[max(depth - 1, 0) :] = [node.name]
        for phase, totals in node.phases.items():
            if totals.self_ns > 0:
                stack = [frames.setdefault(name, len(frames)) for name in names]
                graph = graphs[phase if phase in MODULE_PHASES else _OTHER]
                graph.append((stack, totals.self_ns))
    # The viewer does not open a file without a graph.
    shown = [name for name, graph in graphs.items() if graph] or ["forward"]
    content = {
        "$schema": _SCHEMA,
        "exporter": "torchprof_hooks",
        "name": "torchprof_hooks",
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": [_flame_graph(name, graphs[name]) for name in shown],
    }
    return json.dumps(content)


def _flame_graph(name: str, graph: list[_Stack]) -> dict[str, Any]:
    return {
        "type": "sampled",
        "name": name,
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": sum(own_ns for _, own_ns in graph),
        "samples": [stack for stack, _ in graph],
        "weights": [own_ns for _, own_ns in graph],
    }
