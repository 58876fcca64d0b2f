"""How many steps of a run were measured. Imported while the program runs, so small."""

from __future__ import annotations

from operator import add
from typing import Final, NamedTuple


class MeasuredSteps(NamedTuple):
    """How many steps of a run were measured. Evaluation calls count as steps here. What
    is inside of a part of the run (a model, its backward) is scaled from measured steps
    to the part's time in all steps. Zeros: every step was measured.

    steps: how many there were.
    measured: in how many of them modules, and functions if wanted, were measured.
    traced, traced_ns: how many steps were traced, and how long they took. No row
        contains that time.
    """

    steps: int = 0
    measured: int = 0
    traced: int = 0
    traced_ns: int = 0

    @property
    def are_all(self) -> bool:
        """Whether all steps were measured."""
        return self.measured == self.steps

    @property
    def share(self) -> float:
        """The share of the steps that were measured; 1.0 without steps."""
        return self.measured / self.steps if self.steps else 1.0

    def merge(self, other: MeasuredSteps) -> MeasuredSteps:
        """The steps of both runs. A run in which all were measured has zeros here, so
        its steps are left out."""
        return MeasuredSteps(*map(add, self, other))


#: All were measured.
NO_STEPS: Final = MeasuredSteps()
