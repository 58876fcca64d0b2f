"""The tree of modules, folded to what matters."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.tree import Node
from torchprof_hooks.reports.hottest import (
    Hottest,
    Kind,
    by_kind,
    kind_of,
    summed_phases,
)
from torchprof_hooks.reports.row_table import inclusive_device_time, inclusive_time
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
#: Kinds of rows that the lines of phases do not show: modules, and each collective.
_SHOWN_KINDS: Final = ("module", "communication")
_MARK: Final = "  <- hottest"


@dataclass(frozen=True)
class Layers:
    """Layers of a kind.

    node: all of them together, with what they call.
    count: how many modules they are.
    around: the layers that call them.
    """

    kind: Kind
    node: Node
    count: int
    around: Layers | None

    @property
    def name(self) -> str:
        """The name of the module; of several, the name of their kind."""
        return self.node.name if self.count == 1 else self.kind.name

    @property
    def depth(self) -> int:
        """How many layers are around them."""
        return 0 if self.around is None else self.around.depth + 1

    @property
    def label(self) -> str:
        """``  blocks.*: 12 Block``: without what the line around shows already."""
        marks = " [compiled]" * self.node.compiled
        name = self._short_name()
        kind = self.node.class_name if self.node.kind == "module" else ""
        kind = f"{self.count} {kind}" if self.count > 1 else kind
        is_said = not kind or kind == name
        return "  " * self.depth + name + ("" if is_said else f": {kind}") + marks

    def _short_name(self) -> str:
        if self.around is None:
            return self.name
        prefix = f"{self.around.name}."
        if self.name.startswith(prefix):
            return self.name.removeprefix(prefix)
        return self.kind.name.removeprefix(f"{self.around.kind.name}.")


_COLUMNS: Final = (
    Column("forward", inclusive_time("forward"), is_kept=True),
    Column("backward", inclusive_time("backward")),
    Column("recompute", inclusive_time("recompute")),
    Column("device", inclusive_device_time),
    Column[Row]("total", lambda row: row.cumulative_ns),
)
#: Columns that are left out where there is no room for names, in this order.
_DISPENSABLE: Final = (("calls",), ("recompute",), ("device",), ("forward", "backward"))


def module_lines(
    profile: Profile, tree: Node, hot: Hottest | None, max_rows: int, width: int
) -> Iterator[Line]:
    """The most expensive layers, each below those that call them; the hottest ones are
    there in any case, and marked."""
    shown = _chosen(tree, hot.kind if hot else None, max_rows, profile.wall_ns)
    if not shown:
        return
    nodes = [layers.node for layers in shown]
    own = share_column((node.self_ns for node in nodes), profile.wall_ns)
    columns = [
        count_column("calls", (node.calls for node in nodes)),
        *filled_columns(_COLUMNS, nodes, lambda ns: format_times(ns, "auto")),
        share_column((node.cumulative_ns for node in nodes), profile.wall_ns),
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
    the most expensive first. Where there is no room for all layers around the hottest
    ones, the outermost are left out."""
    if max_rows < 1:
        return []
    way = _way_to(hot, tree) if hot else []
    outermost = way[-max_rows].alike if len(way) > max_rows else tree.children
    order = 0
    waiting: list[_Waiting] = []

    def add(
        inner: Iterable[Layers], place: tuple[int, ...], way: Sequence[_Turn]
    ) -> None:
        nonlocal order
        for layers in inner:
            order += 1  # equal ones stay in the order of their calls
            rest = way[1:] if way and layers.kind == way[0].kind else None
            total_ns = layers.node.cumulative_ns
            rank = (*place, -total_ns, order)
            waits = _Waiting(rest is None, -total_ns, order, layers, rank, rest or ())
            heapq.heappush(waiting, waits)

    add(_folded(outermost, None), (), way[-max_rows:])
    chosen: list[tuple[tuple[int, ...], Layers]] = []
    while waiting and len(chosen) < max_rows:
        is_cold, _, _, layers, place, rest = heapq.heappop(waiting)
        if is_cold and layers.node.cumulative_ns < _LEAST_SHARE * wall_ns:
            break
        chosen.append((place, layers))
        add(_folded(layers.node.children, layers), place, rest)
    return [layers for _, layers in sorted(chosen, key=lambda each: each[0])]


class _Waiting(NamedTuple):
    """Layers that may be shown: of all that wait, the smallest tuple is next.

    is_cold: whether they are neither the hottest nor around these.
    order: no two have the same, so that nothing after it is compared.
    rank: where their line is.
    way: from them to the hottest.
    """

    is_cold: bool
    less_ns: int
    order: int
    layers: Layers
    rank: tuple[int, ...]
    way: Sequence[_Turn]


class _Turn(NamedTuple):
    """Layers on the way to the hottest.

    alike: their nodes.
    """

    kind: Kind
    alike: Sequence[Node]


def _way_to(hot: Kind, tree: Node) -> list[_Turn]:
    """The layers around the hottest ones, the outermost first, and then these. If they
    are called from several places, the way on which they take most of their time."""
    own_ns: dict[int, int] = {}
    for _, node in reversed(list(tree.walk())):  # bottom up: children come first
        below_ns = sum(own_ns[id(child)] for child in node.children)
        own_ns[id(node)] = below_ns + node.self_ns * (kind_of(node) == hot)

    way: list[_Turn] = []
    nodes: Sequence[Node] = tree.children
    while not way or way[-1].kind != hot:
        turns = [_Turn(*each) for each in _shown_kinds(nodes).items()]
        times_ns = [sum(own_ns[id(node)] for node in turn.alike) for turn in turns]
        most_ns = max(times_ns, default=0)
        if most_ns <= 0:  # the hottest are in nothing that is shown
            return []
        way.append(turns[times_ns.index(most_ns)])
        nodes = [child for node in way[-1].alike for child in node.children]
    return way


def _shown_kinds(nodes: Iterable[Node]) -> dict[Kind, list[Node]]:
    return by_kind(node for node in nodes if node.kind in _SHOWN_KINDS)


def _folded(nodes: Iterable[Node], around: Layers | None) -> Iterator[Layers]:
    for kind, alike in _shown_kinds(nodes).items():
        together = replace(
            alike[0],
            compiled=any(node.compiled for node in alike),
            phases=summed_phases(alike),
            children=tuple(child for node in alike for child in node.children),
        )
        yield Layers(kind, together, len({node.name for node in alike}), around)
