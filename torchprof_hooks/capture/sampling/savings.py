"""Time that may be spent on measuring."""

from __future__ import annotations

from math import ceil
from random import Random
from typing import Final

#: Steps' worth of it that may be saved up, to be spent at once.
_MOST_STEPS: Final = 50


class Savings:
    """What steps earn, less what measuring has cost. It may be overdrawn: what it costs
    is known afterwards.

    random: not the program's.
    spent_ns: all costs, as far as they are known.
    """

    def __init__(self, random: Random) -> None:
        self.spent_ns = 0.0
        self._random = random
        self._left_ns = 0.0

    @property
    def is_overdrawn(self) -> bool:
        """Whether more has been spent than earned."""
        return self._left_ns < 0

    def earn(self, income_ns: float, steps: int = 1) -> None:
        """So many steps earn that together."""
        most_ns = _MOST_STEPS * income_ns / steps
        self._left_ns = min(self._left_ns + income_ns, most_ns)

    def spend(self, cost_ns: float) -> None:
        """Something of ours has taken time."""
        self.spent_ns += cost_ns
        self._left_ns -= cost_ns

    def steps_to_wait(self, income_ns: float, longest: int) -> int:
        """Until there is something to spend again, and some more: not as soon as
        possible, for the sake of chance.

        income_ns: of each of these steps.
        longest: after so many, and some more, one sees again.
        """
        steps = longest
        if income_ns > 0:
            steps = min(ceil(-self._left_ns / income_ns), longest)
        return steps + self._random.randint(0, steps)
