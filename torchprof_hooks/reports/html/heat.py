"""How hot the parts of a run are: the colour of their frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.reports.hottest import COLD, Kind, kind_of

#: Shares of the time, own time of all layers of a kind, from which on these are hotter.
#: (icicle.ts has the same.)
_LEVELS: Final = (0.01, 0.03, 0.07, 0.15, 0.3)


#: What the colours stand for.
LEVEL_TEXTS: Final = ("less", *(f"{100 * share:g} %" for share in _LEVELS))


def heat(row: Row, own: Mapping[Kind, int], whole_ns: int) -> int:
    """How much of the time calls of the row's kind take, from 0 (cold) to 5."""
    if row.kind in COLD or not whole_ns:
        return 0
    share = own.get(kind_of(row), 0) / whole_ns
    return sum(share >= least for least in _LEVELS)
