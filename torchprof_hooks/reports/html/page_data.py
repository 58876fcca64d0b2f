"""The numbers that the script of a page works with, in as few characters as will do.

::

    {"texts": [...],
     "records": [[[phase, calls, own, ...], ...], ...],
     "trees": {"modules": [item, ...], "functions": [...]},
     "rows": {"module": [item, ...], "class": [...], ...}}

Each text, and the numbers of a row in its phases, stand there once; all else refers to
their positions. An item is ``[name, class, kind, like, record, calls, marks, parent]``;
that of a row has no parent. Numbers of a phase end where only zeros follow. The reader
is `data.ts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torchprof_hooks.profiles.names import GROUPINGS, MODULE_GROUPINGS, Grouping, Phase
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.totals import NOTHING, Totals
from torchprof_hooks.profiles.tree import Node
from torchprof_hooks.reports.hottest import kind_of
from torchprof_hooks.reports.source import Source

#: Places of a tree with functions from which on it is left out: the page would be
#: slow, and the tables have them all.
_LARGEST_TREE: Final = 30_000

Item = list[int]


class PageData:
    """Packs the rows of profiles. Texts and records have the positions in which they
    came, each once."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}
        self._records: dict[tuple[tuple[int, ...], ...], int] = {}

    def text(self, text: str) -> int:
        """The position of a text."""
        return self._texts.setdefault(text, len(self._texts))

    def content(self, source: Source) -> dict[str, Any]:
        """Everything about a run."""
        trees = {"modules": self._tree(source.tree)}
        kinds: tuple[Grouping, ...] = MODULE_GROUPINGS
        if source.functions.has_functions:
            kinds = GROUPINGS
            tree = self._tree(source.functions.tree(functions=True))
            if len(tree) <= _LARGEST_TREE:
                trees["functions"] = tree
        rows = {by: [self._item(row) for row in source.rows(by)] for by in kinds}
        pools = {"texts": list(self._texts), "records": list(self._records)}
        return {**pools, "trees": trees, "rows": rows}

    def _tree(self, top: Node) -> list[Item]:
        """The places, each with the position of the one that it is called from."""
        items: list[Item] = []
        around: list[int] = []  # positions of those around, by depth
        for depth, node in top.walk():
            parent = around[depth - 1] if depth else -1
            around[depth:] = [len(items)]
            items.append([*self._item(node), parent])
        return items

    def _item(self, row: Row) -> Item:
        record = tuple(
            self._numbers(phase, totals)
            for phase, totals in row.phases.items()
            if totals != NOTHING
        )
        return [
            self.text(row.name),
            self.text(row.class_name),
            self.text(row.kind),
            self.text(" ".join(kind_of(row))),
            self._records.setdefault(record, len(self._records)),
            row.calls,
            self.text(_marks(row)),
        ]

    def _numbers(self, phase: Phase, totals: Totals) -> tuple[int, ...]:
        cumulative = totals.memory_cumulative
        numbers = [
            self.text(phase),
            totals.calls,
            totals.self_ns,
            totals.cumulative_ns,
            round(totals.mean_ns),
            round(totals.std_ns),
            totals.min_ns,
            totals.max_ns,
            totals.flops,
            totals.flops_cumulative,
            totals.device_self_ns,
            totals.device_cumulative_ns,
            totals.memory.retained_bytes,
            cumulative.retained_bytes,
            cumulative.used_bytes,
            cumulative.peak_bytes,
        ]
        while numbers[-1] == 0 and len(numbers) > 1:
            numbers.pop()
        return tuple(numbers)


def _marks(row: Row) -> str:
    """What a row is besides its numbers: compiled, say."""
    shared = f"also {', '.join(row.aliases)}" if row.aliases else ""
    inside = f"in {row.module}" if row.kind == "function" and row.module else ""
    kinds: Mapping[str, str] = {"op": "torch.ops", "custom": "custom Function"}
    runs = kinds.get(row.implementation, "")
    compiled = "compiled" if row.compiled else ""
    inputs = ", ".join(row.inputs)
    autocast = f"autocast {row.autocast}" if row.autocast else ""
    marks = (compiled, inside, runs, inputs, autocast, shared)
    return ", ".join(filter(None, marks))
