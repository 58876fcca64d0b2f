"""How measured steps compare with the others. Imported while the program runs, so
small."""

from __future__ import annotations

from typing import Final, NamedTuple

#: Only of so many blocks it is kept how much longer their steps took.
BLOCKS_KEPT: Final = 512


class MeasuredSteps(NamedTuple):
    """How much longer measured steps took than others, and which steps are left out.

    longer: for blocks of measured steps, by how much longer their median step took than
        that of the unmeasured block before them: 0.03 for 3 % longer. At most the last
        512. Empty where all steps were measured.
    traced, traced_ns: how many steps were traced, and how long they took. No row
        contains that time.
    """

    longer: tuple[float, ...] = ()
    traced: int = 0
    traced_ns: int = 0

    def merge(self, other: MeasuredSteps) -> MeasuredSteps:
        """The steps of both runs. Of too many blocks, some are left out, such that the
        spread stays."""
        longer = self.longer or other.longer
        if self.longer and other.longer:
            longer = tuple(sorted((*self.longer, *other.longer)))
        if (count := len(longer)) > BLOCKS_KEPT:
            places = (i * count // BLOCKS_KEPT for i in range(BLOCKS_KEPT))
            longer = tuple(longer[place] for place in places)
        return MeasuredSteps(
            longer, self.traced + other.traced, self.traced_ns + other.traced_ns
        )


#: No step was left out, and none was traced.
ALL_MEASURED: Final = MeasuredSteps()
