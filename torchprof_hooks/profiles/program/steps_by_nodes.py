"""Steps of which only the end was seen, estimated by the nodes of autograd that were
made in them."""

from __future__ import annotations

from typing import Final

from torchprof_hooks.profiles.cells import CellKey, sum_of_own_ns
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program.pattern import fixed_cells, scaled, usual
from torchprof_hooks.profiles.program.stratum import Stratum
from torchprof_hooks.profiles.program.timed_phases import TimedPhases
from torchprof_hooks.profiles.program.unseen_steps import (
    MUCH_LONGER,
    with_rest,
)

#: Up to this time of the program per node, calling functions is what takes time, and in
#: all steps as many calls come to a node. Above it, the work inside of functions does,
#: which depends on their inputs.
_SHORT_NS: Final = 100_000
#: How much slower, or faster, a machine can be in the mean of all steps than around
#: those that were seen. If the difference is larger, it is other work of the program.
_MOST_SLOWER: Final = 1.5


def imagined_by_nodes(counted: Stratum, seen: Stratum) -> Profile | None:
    """The profile of training steps that were only counted, estimated by nodes: each is
    taken to cost as much time in modules, backward, optimizers and so on as in the
    steps that were seen; or more, if nodes took longer than around these. Phases that
    were timed, and calls that were watched, keep their own times. Of the time that is
    left, up to twice as much as in the seen steps counts as outside of modules; of the
    rest nothing is known.

    So steps may have any number of calls, and it does not matter how much of the time
    between calls measuring took, which is not known well where calls are short.

    None where time does not go with nodes: see `imagined` for such steps.
    """
    if not (counted.is_of_training and seen.is_of_training):
        return None
    pattern = usual(seen.profile.corrected())
    pattern_ns = sum_of_own_ns(pattern)
    if not 0 < pattern_ns <= _SHORT_NS * seen.nodes:
        return None
    cells = fixed_cells(counted.profile)
    steps_ns = counted.profile.step_times.steps_ns
    steps_ns -= sum_of_own_ns(cells)
    calls = counted.nodes / seen.nodes
    timed = TimedPhases(counted, pattern)
    factors = timed.factors
    # Where backward was timed in both, it tells how fast the machine was.
    by_all = calls * _slower(steps_ns / calls, seen.unseen_ns)
    factor = factors.get("backward", by_all)
    inside_ns, outside_ns = float(timed.watched_ns), 0.0
    pattern = {k: t for k, t in pattern.items() if k[1] not in timed.watched_phases}
    for key, totals in pattern.items():
        if _is_rest(key):
            outside_ns += factor * totals.self_ns
        else:
            inside_ns += factors.get(key[1], factor) * totals.self_ns
    if inside_ns > steps_ns:  # the machine was slower where it was looked at
        return None
    rest_ns = min(steps_ns - inside_ns, MUCH_LONGER * outside_ns)
    time_outside = factor * rest_ns / outside_ns if outside_ns else factor
    for key, totals in pattern.items():
        time = time_outside if _is_rest(key) else factors.get(key[1], factor)
        cells[key] = scaled(totals, time, calls)
    cells.update(timed.watched)
    return with_rest(counted.profile, cells, seen.profile.modules)


def _slower(took_ns: float, unseen_ns: int) -> float:
    """How much slower the machine was. Both times are for the same number of nodes."""
    slower = took_ns / unseen_ns if unseen_ns else 1.0
    return slower if 1 / _MOST_SLOWER < slower < _MOST_SLOWER else 1.0


def _is_rest(key: CellKey) -> bool:
    return key[1] == "outside"
