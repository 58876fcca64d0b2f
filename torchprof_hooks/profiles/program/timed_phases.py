"""Phases that were timed in steps of which otherwise only the end was seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from torchprof_hooks.profiles.cells import CellKey, sum_of_own_ns
from torchprof_hooks.profiles.names import BACKWARD_PHASES, Phase
from torchprof_hooks.profiles.program.pattern import fixed_cells, scaled
from torchprof_hooks.profiles.program.stratum import Stratum
from torchprof_hooks.profiles.totals import Totals

_WATCHED: Final[tuple[Phase, ...]] = ("forward", "data")


class TimedPhases:
    """The phases of a pattern that were timed in the steps to be estimated by it.

    factors: for each timed phase, by what the times of its cells are multiplied.
    left_ns: the time that these phases, watched calls and `fixed_cells` leave.
    watched: the cells of outermost modules' calls, and of batches, where these were
        watched: as they were, or scaled up to all of the time if they were watched only
        in a part of it.
    """

    def __init__(self, counted: Stratum, pattern: Mapping[CellKey, Totals]) -> None:
        self.factors: dict[Phase, float] = {}
        self._total_ns = 0.0
        self._steps_ns = counted.profile.step_times.steps_ns
        seen_ns: Counter[Phase] = Counter()
        for (_, phase), totals in pattern.items():
            seen_ns[phase] += totals.self_ns
        # Where a pass is timed, its waiting for other processes is not told apart.
        if not (seen_ns["waiting"] or seen_ns["communication"]):
            self._add(BACKWARD_PHASES, counted.backward_ns, seen_ns)
        self._add(("optimizer",), counted.optimizers_ns, seen_ns)
        self.watched = self._watched_in(counted)
        self.left_ns = self._fit(counted)

    @property
    def watched_phases(self) -> tuple[Phase, ...]:
        """Phases of which all cells are known, since they were watched."""
        return _WATCHED if self.watched else ()

    @property
    def watched_ns(self) -> int:
        """What the watched calls took."""
        return sum_of_own_ns(self.watched)

    def _watched_in(self, counted: Stratum) -> dict[CellKey, Totals]:
        if not counted.knows_calls:
            return {}
        cells = counted.profile.corrected().cells.items()
        watched = {key: t for key, t in cells if key[1] in _WATCHED}
        wall_ns = counted.profile.wall_ns
        ratio = wall_ns / max(wall_ns - counted.unwatched_ns, 1)
        return {key: scaled(t, ratio, ratio) for key, t in watched.items()}

    def within_ns(self, steps_ns: int) -> float:
        """What the timed phases took in `steps_ns` of the time of all steps."""
        return self._total_ns * min(steps_ns / max(self._steps_ns, 1), 1.0)

    def _fit(self, counted: Stratum) -> float:
        """Cut the times of phases, which are estimates by some steps for all, to what
        all steps have room for. Returns the time that is left."""
        times = counted.profile.step_times
        known_ns = sum_of_own_ns(fixed_cells(counted.profile))
        known_ns += self.watched_ns
        room_ns = max(times.steps_ns + times.evaluation_ns - known_ns, 0)
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
