"""How hot the parts of a run are: the colour of their frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.reports.time_tree import without_numbers

#: Shares of the time, own time of all layers of a kind, from which on these are hotter.
#: (icicle.ts has the same.)
_LEVELS: Final = (0.01, 0.03, 0.07, 0.15, 0.3)


#: What the colours stand for.
LEVEL_TEXTS: Final = ("less", *(f"{100 * share:g} %" for share in _LEVELS))

#: Kinds of rows that are cold, however long they take: they are nobody's, or ours.
COLD: Final = ("outside", "profiler", "unsampled")


def kind_name(row: Row) -> str:
    """What layers of one kind have in common; of what is no module, its name."""
    return without_numbers(row.name) if row.kind == "module" else row.name


def own_by_kind(rows: Iterable[Row]) -> Mapping[str, int]:
    """Own times of the layers of each kind together: a model of many equal layers has
    no hot one, if each is looked at by itself."""
    sums: Counter[str] = Counter()
    for row in rows:
        sums[kind_name(row)] += row.self_ns
    return sums


def heat(row: Row, own: Mapping[str, int], whole_ns: int) -> int:
    """0 (cold) to 5."""
    if row.kind in COLD or not whole_ns:
        return 0
    share = own.get(kind_name(row), 0) / whole_ns
    return sum(share >= least for least in _LEVELS)
