"""The tree of modules, folded to what matters."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.tree import Node
from torchprof_hooks.reports.hottest import Hottest, Kind, kind_of
from torchprof_hooks.reports.screen.line import Line
from torchprof_hooks.reports.table import (
    Column,
    TextColumn,
    count_column,
    filled_columns,
    share_column,
    table_lines,
)
from torchprof_hooks.reports.units import format_times

#: Share of the time from which on modules are shown.
_LEAST_SHARE: Final = 0.01
#: Kinds of rows that no phase has a line for: modules, and collectives by their names.
_SHOWN_KINDS: Final = ("module", "communication")
_MARK: Final = "  <- hottest"


@dataclass(frozen=True)
class Layers:
    """Layers of a kind.

    around: the layers that call them.
    """

    kind: Kind
    nodes: Sequence[Node]
    around: Layers | None = None

    @property
    def name(self) -> str:
        """The name of the module; of several, the name of their kind."""
        names = {node.name for node in self.nodes}
        return names.pop() if len(names) == 1 else self.kind.name

    @property
    def total_ns(self) -> int:
        """Time with inner modules."""
        return sum(node.cumulative_ns for node in self.nodes)

    @property
    def self_ns(self) -> int:
        """Time without inner modules."""
        return sum(node.self_ns for node in self.nodes)

    @property
    def depth(self) -> int:
        """How many layers are around them."""
        return 0 if self.around is None else self.around.depth + 1

    @property
    def label(self) -> str:
        """``  blocks.*: 12 Block``: without what the line around shows already."""
        first = self.nodes[0]
        count = len({node.name for node in self.nodes})
        marks = " [compiled]" * any(node.compiled for node in self.nodes)
        name = self._short_name()
        kind = first.class_name if first.kind == "module" else ""
        kind = f"{count} {kind}" if count > 1 else kind
        is_said = not kind or kind == name
        return "  " * self.depth + name + ("" if is_said else f": {kind}") + marks

    def _short_name(self) -> str:
        if self.around is None:
            return self.name
        prefix = f"{self.around.name}."
        if self.name.startswith(prefix):
            return self.name.removeprefix(prefix)
        return self.kind.name.removeprefix(f"{self.around.kind.name}.")

    def inner(self) -> Iterator[Layers]:
        """The layers that they call."""
        return _folded((child for node in self.nodes for child in node.children), self)


def _time(phase: Phase) -> Callable[[Layers], int]:
    return lambda layers: sum(node.phases[phase].cumulative_ns for node in layers.nodes)


def _device(layers: Layers) -> int:
    every = (totals for node in layers.nodes for totals in node.phases.values())
    return sum(totals.device_cumulative_ns for totals in every)


_COLUMNS: Final = (
    Column("forward", _time("forward"), is_kept=True),
    Column("backward", _time("backward")),
    Column("recompute", _time("recompute")),
    Column("device", _device),
    Column[Layers]("total", lambda layers: layers.total_ns),
)
#: Columns that are left out where there is no room for names, the first first.
_DISPENSABLE: Final = (("calls",), ("recompute",), ("device",), ("forward", "backward"))


def module_lines(
    profile: Profile, tree: Node, hot: Hottest | None, max_rows: int, width: int
) -> Iterator[Line]:
    """The most expensive layers, each below those that call them; the hottest ones are
    there in any case, and marked.

    Example::

        module                calls  forward  backward    total     %  own %
        CharLM                  110  5.59sec   9.31sec 14.90sec  82.0    0.2
          blocks: Sequential    110  5.43sec   9.11sec 14.54sec  80.0    0.1
            *: 4 Block          440  5.41sec   9.08sec 14.49sec  79.8    1.3
    """
    shown = _chosen(tree, hot.kind if hot else None, max_rows, profile.wall_ns)
    if not shown:
        return
    times = filled_columns(_COLUMNS, shown, lambda ns: format_times(ns, "auto"))
    own = share_column((layers.self_ns for layers in shown), profile.wall_ns)
    columns = [
        count_column("calls", (sum(n.calls for n in each.nodes) for each in shown)),
        *times,
        share_column((layers.total_ns for layers in shown), profile.wall_ns),
        TextColumn("own %", own.texts),
    ]
    labels = ["module", *(layers.label for layers in shown)]
    room = max(width - len(_MARK), 1)
    header, *lines = table_lines(labels, columns, room, _DISPENSABLE)
    yield Line(header, "title")
    for layers, line in zip(shown, lines, strict=True):
        is_hot = hot is not None and layers.kind == hot.kind
        yield Line(line + _MARK, "hot") if is_hot else Line(line)


def _chosen(tree: Node, hot: Kind | None, max_rows: int, wall_ns: int) -> list[Layers]:
    """The layers that are shown, in the order of lines: layers before what they call,
    the most expensive first."""
    order = 0
    waiting: list[tuple[bool, int, int, Layers, tuple[int, ...]]] = []

    def add(inner: Iterable[Layers], place: tuple[int, ...]) -> None:
        nonlocal order
        for layers in inner:
            order += 1  # equal ones stay in the order of their calls
            is_cold = hot is None or not _is_around(layers.kind, hot)
            rank = (*place, -layers.total_ns, order)
            heapq.heappush(waiting, (is_cold, -layers.total_ns, order, layers, rank))

    add(_folded(tree.children, None), ())
    chosen: list[tuple[tuple[int, ...], Layers]] = []
    while waiting and len(chosen) < max_rows:
        is_cold, _, _, layers, place = heapq.heappop(waiting)
        if is_cold and layers.total_ns < _LEAST_SHARE * wall_ns:
            break
        chosen.append((place, layers))
        add(layers.inner(), place)
    return [layers for _, layers in sorted(chosen, key=lambda each: each[0])]


def _is_around(kind: Kind, hot: Kind) -> bool:
    return kind == hot or hot.name.startswith(f"{kind.name}.")


def _folded(nodes: Iterable[Node], around: Layers | None) -> Iterator[Layers]:
    kinds: dict[Kind, list[Node]] = {}
    for node in nodes:
        if node.kind in _SHOWN_KINDS:
            kinds.setdefault(kind_of(node), []).append(node)
    for kind, alike in kinds.items():
        yield Layers(kind, alike, around)
