"""Profiles for https://www.speedscope.app, a viewer of flame graphs.

The format is described there, in ``file-format-schema.json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.reports.export.stacks import STACK_GROUPS, Stack, own_time_stacks

_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"


def render(profile: Profile) -> str:
    """A flame graph in nanoseconds for each of "forward", "backward", "recompute" and
    "other" that took time; the viewer has a menu of them at the top.

    Example::

        {"$schema": "https://www.speedscope.app/file-format-schema.json",
         "shared": {"frames": [{"name": "Net"}, {"name": "Net.fc"}]},
         "profiles": [{"type": "sampled", "name": "forward", "unit": "nanoseconds",
                       "startValue": 0, "endValue": 51000,
                       "samples": [[0], [0, 1]], "weights": [1000, 50000]}, ...],
         ...}
    """
    stacks = list(own_time_stacks(profile))
    frames = {name: i for i, name in enumerate(_names(stacks))}
    taken = {stack.group for stack in stacks}
    # The viewer does not open a file without any graph.
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


def _names(stacks: Sequence[Stack]) -> dict[str, None]:
    """Every name once, in order."""
    return dict.fromkeys(name for stack in stacks for name in stack.names)


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
