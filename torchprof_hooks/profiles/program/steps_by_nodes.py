"""Steps of which only the end was seen, estimated by the nodes of autograd that were
made in them."""

from __future__ import annotations

from typing import Final, NamedTuple

from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program.unseen_steps import (
    MUCH_LONGER,
    garbage_of,
    scaled,
    usual,
    with_rest,
)

#: Up to which time of the program for each node what takes time is calling functions,
#: of which as many come to each node in all steps. Above it, it is the work inside of
#: them, which depends on what they are given.
_SHORT_NS: Final = 100_000


class NodeCount(NamedTuple):
    """The profile of some steps, and how many nodes were made in them."""

    profile: Profile
    nodes: int

    @property
    def is_of_training(self) -> bool:
        """Whether all calls make nodes: those of evaluations do not."""
        return self.nodes > 0 and not self.profile.step_times.evaluations


def imagined_by_nodes(counted: NodeCount, seen: NodeCount) -> Profile | None:
    """The profile of training steps that were only counted, as it would be if to each
    node came as much time in modules, backward, optimizers and so on as in those that
    were seen. Of the time that is left, up to twice as much as in these is outside of
    all; of the rest nothing is known.

    Steps are of any number of calls then, and it does not matter what measuring took of
    the time between calls, which is not known well where they are short.

    None where time does not go with nodes: see `imagined` for these.
    """
    pattern = usual(seen.profile.corrected())
    pattern_ns = sum(totals.self_ns for totals in pattern.values())
    if not (counted.is_of_training and seen.is_of_training):
        return None
    if not 0 < pattern_ns <= _SHORT_NS * seen.nodes:
        return None
    cells = garbage_of(counted.profile)
    times = counted.profile.step_times
    steps_ns = times.first_ns + times.later_ns
    steps_ns -= sum(totals.self_ns for totals in cells.values())
    factor = counted.nodes / seen.nodes
    inside_ns = factor * sum(t.self_ns for k, t in pattern.items() if not _is_rest(k))
    outside_ns = factor * pattern_ns - inside_ns
    if inside_ns > steps_ns:  # the machine was slower where it was looked at
        return None
    rest_ns = min(steps_ns - inside_ns, MUCH_LONGER * outside_ns)
    time_outside = factor * rest_ns / outside_ns if outside_ns else factor
    for key, totals in pattern.items():
        time = time_outside if _is_rest(key) else factor
        cells[key] = scaled(totals, time, factor)
    return with_rest(counted.profile, cells, seen.profile.modules)


def _is_rest(key: CellKey) -> bool:
    return key[1] == "outside"
