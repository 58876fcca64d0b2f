"""The own times of a profile as stacks, for flame graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from torchprof_hooks.profiles.names import MODULE_PHASES, Phase
from torchprof_hooks.profiles.profile import Profile

#: The group of all that is not a phase of a module: optimizers, data, the profiler, ...
OTHER: Final = "other"

#: What a flame graph is divided into, in the order in which it is shown.
STACK_GROUPS: Final = (*MODULE_PHASES, OTHER)


class Stack(NamedTuple):
    """Own time in calls inside each other, the outer one first.

    group: one of `STACK_GROUPS`.
    """

    names: tuple[str, ...]
    group: str
    self_ns: int


def own_time_stacks(profile: Profile) -> Iterator[Stack]:
    """A stack for each place in the tree of calls and each phase, in the order of the
    tree; their times add up to the wall time.

    Times of 0 are left out; so are those below 0, which no flame graph can show. (They
    come about only where a profile was read while calls were open.)
    """
    names: list[str] = []
    for depth, node in profile.tree(functions=True).walk():
        names[max(depth - 1, 0) :] = [node.name]
        for phase, totals in node.phases.items():
            if totals.self_ns > 0:
                yield Stack(tuple(names), _group(phase), totals.self_ns)


def _group(phase: Phase) -> str:
    return phase if phase in MODULE_PHASES else OTHER
