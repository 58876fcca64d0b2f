"""How steps of a run were measured. Imported while the program runs, so small."""

from __future__ import annotations

from typing import Final, NamedTuple

#: Only of so many blocks it is kept how much longer their steps took.
BLOCKS_KEPT: Final = 512


class MeasuredSteps(NamedTuple):
    """How steps of a run were measured, where not all were, or some were traced.

    longer: of each block of measured steps, but the first one, by which share its steps
        took longer on average than those of the unmeasured block before it: 0.03 for
        three per cent. At most the last 512.
    traced, traced_ns: how many steps were traced, and how long they took. No row
        contains that time.
    """

    longer: tuple[float, ...] = ()
    traced: int = 0
    traced_ns: int = 0

    def merge(self, other: MeasuredSteps) -> MeasuredSteps:
        """Those of both runs."""
        return MeasuredSteps(
            tuple(sorted((*self.longer, *other.longer))[:BLOCKS_KEPT]),
            self.traced + other.traced,
            self.traced_ns + other.traced_ns,
        )


#: Nothing to tell: every step was measured.
NO_STEPS: Final = MeasuredSteps()
