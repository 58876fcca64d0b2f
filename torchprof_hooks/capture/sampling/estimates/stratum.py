"""Steps of a program that were measured equally closely, and what is known of those of
which only the end was seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from torchprof_hooks.capture.sampling.estimates.pattern import (
    fixed_cells,
    scaled,
    with_rest,
)
from torchprof_hooks.profiles.cells import CellKey, Infos, sum_of_own_ns
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import BACKWARD_PHASES, Phase
from torchprof_hooks.profiles.totals import Totals

#: Phases of calls that are watched.
_WATCHED: Final[tuple[Phase, ...]] = ("forward", "data")
#: Calls of modules count as known if they were not watched in up to this share of the
#: time.
_MOST_UNWATCHED: Final = 1 / 8


class Stratum(NamedTuple):
    """Steps and evaluation calls of one kind, how many have ended, and what these took.
    The profile has what came after the last one as well.

    nodes: how many autograd nodes were made in them; 0 if that is not known.
    unseen_ns: what the steps would have taken, had only their ends been seen: per node,
        as long as in such steps just before. 0 if that is not known.
    backward_ns, optimizers_ns: what backward passes, and steps of optimizers, took, if
        these are timed in steps of which nothing else is known; else 0.
    unwatched_ns: the time in which evaluation calls were not told apart: they are in
        the training steps that came after them.
    """

    profile: ProfileData = ProfileData()
    steps: int = 0
    steps_ns: int = 0
    nodes: int = 0
    unseen_ns: int = 0
    backward_ns: int = 0
    optimizers_ns: int = 0
    unwatched_ns: int = 0

    @property
    def is_unwatched(self) -> bool:
        """Whether evaluation calls were not told apart, mostly."""
        return 2 * self.unwatched_ns > self.profile.wall_ns

    @property
    def knows_calls(self) -> bool:
        """Whether calls of modules from outside were watched nearly all of the time."""
        has_calls = any(phase == "forward" for _, phase in self.profile.cells)
        most_ns = _MOST_UNWATCHED * self.profile.wall_ns
        return has_calls and self.unwatched_ns <= most_ns

    @property
    def is_of_training(self) -> bool:
        """Whether all calls make nodes: those of evaluations do not."""
        return self.nodes > 0 and not self.profile.step_times.evaluations


class TimedPhases:
    """The phases of a pattern that were timed in the steps to be estimated by it.

    cells: those that need no estimate: `fixed_cells`, and the cells of outermost
        modules' calls, and of batches, where these were watched: as they were, or
        scaled up to all of the time if they were watched only in a part of it.
    watched_phases, watched_ns: phases of which all cells are known, since they were
        watched, and what these took.
    factors: for each timed phase, by what the times of its cells are multiplied.
    left_ns: the time that these phases and the known cells leave.
    """

    def __init__(self, counted: Stratum, pattern: Mapping[CellKey, Totals]) -> None:
        self.factors: dict[Phase, float] = {}
        self._counted = counted.profile
        self._pattern = pattern
        self._total_ns = 0.0
        seen_ns: Counter[Phase] = Counter()
        for (_, phase), totals in pattern.items():
            seen_ns[phase] += totals.self_ns
        # Where a pass is timed, its waiting for other processes is not told apart.
        if not (seen_ns["waiting"] or seen_ns["communication"]):
            self._add(BACKWARD_PHASES, counted.backward_ns, seen_ns)
        self._add(("optimizer",), counted.optimizers_ns, seen_ns)
        watched = self._watched_in(counted)
        self.watched_phases = _WATCHED if watched else ()
        self.watched_ns = sum_of_own_ns(watched)
        self.cells = {**fixed_cells(counted.profile), **watched}
        self.left_ns = self._fit()

    def _watched_in(self, counted: Stratum) -> dict[CellKey, Totals]:
        if not counted.knows_calls:
            return {}
        cells = counted.profile.corrected().cells.items()
        watched = {key: t for key, t in cells if key[1] in _WATCHED}
        wall_ns = counted.profile.wall_ns
        ratio = wall_ns / max(wall_ns - counted.unwatched_ns, 1)
        return {key: scaled(t, ratio, ratio) for key, t in watched.items()}

    def imagined(
        self, factors: Mapping[Phase, tuple[float, float]], infos: Infos
    ) -> ProfileData:
        """The profile of the steps: what is known of them, and the rest of the pattern
        with times and calls multiplied by the factors of its phases."""
        cells = {
            key: scaled(totals, *factors[key[1]])
            for key, totals in self._pattern.items()
            if key[1] not in self.watched_phases
        }
        return with_rest(self._counted, {**cells, **self.cells}, infos)

    def within_ns(self, steps_ns: int) -> float:
        """What the timed phases took in `steps_ns` of the time of all steps."""
        all_ns = max(self._counted.step_times.steps_ns, 1)
        return self._total_ns * min(steps_ns / all_ns, 1.0)

    def _fit(self) -> float:
        """Cut the times of phases, which are estimates by some steps for all, to what
        all steps have room for. Returns the time that is left."""
        times = self._counted.step_times
        all_ns = times.steps_ns + times.evaluation_ns
        room_ns = max(all_ns - sum_of_own_ns(self.cells), 0)
        share = min(room_ns / max(self._total_ns, 1), 1.0)
        self._total_ns *= share
        self.factors = {phase: share * f for phase, f in self.factors.items()}
        return room_ns - self._total_ns

    def _add(
        self, phases: tuple[Phase, ...], took_ns: int, seen_ns: Counter[Phase]
    ) -> None:
        in_pattern_ns = sum(seen_ns[phase] for phase in phases)
        if took_ns and in_pattern_ns:
            self._total_ns += took_ns
            self.factors.update(dict.fromkeys(phases, took_ns / in_pattern_ns))
