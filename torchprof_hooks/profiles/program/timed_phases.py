"""Phases whose time is known in steps of which else only the end was seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.names import BACKWARD_PHASES, Phase
from torchprof_hooks.profiles.program.pattern import fixed_cells, scaled
from torchprof_hooks.profiles.program.stratum import Stratum
from torchprof_hooks.profiles.totals import Totals

_WATCHED: Final[tuple[Phase, ...]] = ("forward", "data")


class TimedPhases:
    """Which phases of a pattern were timed in the steps that are to be like it.

    factors: by what the times of their cells are to be multiplied.
    left_ns: what all of that leaves of the time of the steps; never more than that.
    watched: calls of modules from outside, and batches, where these were watched: all
        of them, as they were; or as many as in all of the time, if in a part of it they
        were not.
    """

    def __init__(self, counted: Stratum, pattern: Mapping[CellKey, Totals]) -> None:
        self.factors: dict[Phase, float] = {}
        self._total_ns = 0.0
        self._steps_ns = counted.profile.step_times.steps_ns
        seen_ns: Counter[Phase] = Counter()
        for (_, phase), totals in pattern.items():
            seen_ns[phase] += totals.self_ns
        # What a pass waits for other processes is not told apart there.
        if not (seen_ns["waiting"] or seen_ns["communication"]):
            self._add(BACKWARD_PHASES, counted.backward_ns, seen_ns)
        self._add(("optimizer",), counted.optimizers_ns, seen_ns)
        self.watched = self._watched_in(counted)
        self.left_ns = self._fit(counted)

    @property
    def watched_phases(self) -> tuple[Phase, ...]:
        """Those of which all is known."""
        return _WATCHED if self.watched else ()

    @property
    def watched_ns(self) -> int:
        """What those calls took."""
        return sum(totals.self_ns for totals in self.watched.values())

    def _watched_in(self, counted: Stratum) -> dict[CellKey, Totals]:
        if not counted.knows_calls:
            return {}
        cells = counted.profile.corrected().cells.items()
        watched = {key: t for key, t in cells if key[1] in _WATCHED}
        wall_ns = counted.profile.wall_ns
        ratio = wall_ns / max(wall_ns - counted.unwatched_ns, 1)
        return {key: scaled(t, ratio, ratio) for key, t in watched.items()}

    def within_ns(self, steps_ns: int) -> float:
        """What they took in so much of the time of the steps."""
        return self._total_ns * min(steps_ns / max(self._steps_ns, 1), 1.0)

    def _fit(self, counted: Stratum) -> float:
        """Cut what was timed in some steps, and is an estimate for all, to what these
        have room for; what that leaves."""
        times = counted.profile.step_times
        known_ns = sum(t.self_ns for t in fixed_cells(counted.profile).values())
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
