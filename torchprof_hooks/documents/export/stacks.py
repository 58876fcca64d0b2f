"""The own times of a profile as stacks, for speedscope, which draws flame graphs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import MODULE_PHASES

_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"

#: The group of all that is in no phase of a module: optimizers, data, the profiler, ...
OTHER: Final = "other"

#: The groups that a flame graph is divided into, in the order in which they are shown.
STACK_GROUPS: Final = (*MODULE_PHASES, OTHER)


class Stack(NamedTuple):
    """Own time in calls inside each other, the outer one first.

    group: one of `STACK_GROUPS`.
    """

    names: tuple[str, ...]
    group: str
    self_ns: int


def own_time_stacks(profile: ProfileData) -> Iterator[Stack]:
    """A stack for each place in the tree of calls and each phase, in the order of the
    tree; their times add up to the measured time.

    Times of 0 are left out; so are those below 0, which no flame graph can show. (Such
    times occur only in a profile that was read while calls were open.)
    """
    names: list[str] = []
    for depth, node in profile.only_measured.tree(functions=True).walk():
        names[max(depth - 1, 0) :] = [node.name]
        for phase, totals in node.phases.items():
            if totals.self_ns > 0:
                group = phase if phase in MODULE_PHASES else OTHER
                yield Stack(tuple(names), group, totals.self_ns)


def render_speedscope(profile: ProfileData) -> str:
    """A file for https://www.speedscope.app, a viewer of flame graphs, in the format of
    its ``file-format-schema.json``. It has a graph in nanoseconds for each of
    "forward", "backward", "recompute" and "other" that took time; the viewer has a menu
    of them at the top.

    Example::

        {"$schema": "https://www.speedscope.app/file-format-schema.json",
         "shared": {"frames": [{"name": "Net"}, {"name": "Net.fc"}]},
         "profiles": [{"type": "sampled", "name": "forward", "unit": "nanoseconds",
                       "startValue": 0, "endValue": 51000,
                       "samples": [[0], [0, 1]], "weights": [1000, 50000]}, ...],
         ...}
    """
    stacks = list(own_time_stacks(profile))
    names = dict.fromkeys(name for stack in stacks for name in stack.names)
    frames = {name: i for i, name in enumerate(names)}
    taken = {stack.group for stack in stacks}
    # The viewer does not open a file without a graph.
    groups = [group for group in STACK_GROUPS if group in taken] or STACK_GROUPS[:1]
    content = {
        "$schema": _SCHEMA,
        "exporter": "torchprof_hooks",
        "name": "torchprof_hooks",
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": [_flame_graph(group, stacks, frames) for group in groups],
    }
    return json.dumps(content)


def _flame_graph(
    group: str, stacks: Sequence[Stack], frames: Mapping[str, int]
) -> dict[str, Any]:
    shown = [stack for stack in stacks if stack.group == group]
    return {
        "type": "sampled",
        "name": group,
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": sum(stack.self_ns for stack in shown),
        "samples": [[frames[name] for name in stack.names] for stack in shown],
        "weights": [stack.self_ns for stack in shown],
    }
