"""Which modules are hot: layers of a kind are looked at together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from torchprof_hooks.profiles.names import MODULE_PHASES, Phase
from torchprof_hooks.profiles.rows import NOTHING, Row
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.reports.time_tree import without_numbers

R = TypeVar("R", bound=Row)

#: Kinds of rows that are cold, however long they take: they are nobody's, or ours.
COLD: Final = ("outside", "profiler", "unsampled")


class Kind(NamedTuple):
    """Modules whose names differ in numbers alone, of one class.

    name: what their names have in common, ``Net.blocks.*.norm``; of what is no module,
        its name.
    """

    name: str
    class_name: str


class Hottest(NamedTuple):
    """The layers of a kind that take the most themselves."""

    kind: Kind
    rows: Sequence[Row]
    own_ns: int

    @property
    def name(self) -> str:
        """That of the module, if there is but one, or of the kind."""
        return self.rows[0].name if len(self.rows) == 1 else self.kind.name

    def own_times_ns(self) -> dict[Phase, int]:
        """What they take themselves, by phase, where that is anything."""
        sums = {
            phase: sum(row.phases[phase].self_ns for row in self.rows)
            for phase in MODULE_PHASES
        }
        return {phase: own_ns for phase, own_ns in sums.items() if own_ns}


def hottest(rows: Iterable[Row]) -> Hottest | None:
    """The layers of that kind among `rows`, None if there are no rows."""
    found = [
        Hottest(kind, alike, sum(row.self_ns for row in alike))
        for kind, alike in by_kind(rows).items()
    ]
    return max(found, key=lambda each: each.own_ns, default=None)


def by_kind(rows: Iterable[R]) -> dict[Kind, list[R]]:
    """The layers of each kind."""
    kinds: dict[Kind, list[R]] = {}
    for row in rows:
        kinds.setdefault(kind_of(row), []).append(row)
    return kinds


def summed_phases(rows: Iterable[Row]) -> dict[Phase, Totals]:
    """What is booked on all of them, by phase."""
    sums: dict[Phase, Totals] = {}
    for row in rows:
        for phase, totals in row.phases.items():
            sums[phase] = sums.get(phase, NOTHING) + totals
    return sums


def kind_of(row: Row) -> Kind:
    """The layers that it is looked at with."""
    name = without_numbers(row.name) if row.kind == "module" else row.name
    return Kind(name, row.class_name)
