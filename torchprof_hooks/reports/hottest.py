"""Which modules are hot: layers of a kind are looked at together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from torchprof_hooks.profiles.names import MODULE_PHASES, Phase
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.reports.time_tree import without_numbers

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
    kinds: defaultdict[Kind, list[Row]] = defaultdict(list)
    for row in rows:
        kinds[kind_of(row)].append(row)
    found = [Hottest(n, rs, sum(r.self_ns for r in rs)) for n, rs in kinds.items()]
    return max(found, key=lambda each: each.own_ns, default=None)


def kind_of(row: Row) -> Kind:
    """The layers that it is looked at with."""
    name = without_numbers(row.name) if row.kind == "module" else row.name
    return Kind(name, row.class_name)


def own_by_kind(rows: Iterable[Row]) -> Mapping[Kind, int]:
    """Own times of the layers of each kind together: a model of many equal layers has
    no hot one, if each is looked at by itself."""
    sums: Counter[Kind] = Counter()
    for row in rows:
        sums[kind_of(row)] += row.self_ns
    return sums
