"""The first steps of a program, of which little is known yet."""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import Final

#: Steps that are looked into as closely as possible before they are paid for, if there
#: is a lower level to look on: the first step alone, when caches are cold, tells
#: little. What they cost is saved afterwards.
_EARLY: Final = tuple(4**n for n in range(1, 12))
#: How many steps and evaluations in a row to look at, at most, for a training step.
_LONGEST_LOOK: Final = 8


class EarlyLooks:
    """When to look closely at the next steps before that is paid for.

    Until the first training step, evaluations count; from then on, training steps alone
    do: what a program does before it learns, as in reinforcement learning, says nothing
    of backward passes. Where evaluations come between training steps, a look is long
    enough for both.

    is_wanted: whether there are such looks.
    """

    def __init__(self, is_wanted: bool) -> None:
        self._due = deque(_EARLY if is_wanted else ())
        self._trained = self._evaluations = 0

    def count(self, steps: int, evaluations: int) -> None:
        """So many steps have ended, of which so many are evaluation calls."""
        trained = max(steps - evaluations, 0)
        if trained and not self._trained:
            if self._evaluations and self._due:
                self._due = deque((1, *_EARLY))
            self._evaluations = 0
        self._trained += trained
        self._evaluations += evaluations

    @property
    def steps_left(self) -> int | None:
        """How many steps come before the next look, at least; None if none comes."""
        return self._due[0] - self._counted if self._due else None

    def take(self) -> int:
        """How many steps to look at now; 0: it is too early for that."""
        if not self._due or self._counted < self._due[0]:
            return 0
        self._due.popleft()
        between = ceil(self._evaluations / self._trained) if self._trained else 0
        return min(1 + between, _LONGEST_LOOK)

    @property
    def _counted(self) -> int:
        return self._trained or self._evaluations
