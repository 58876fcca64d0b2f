"""The tree of modules, folded to what matters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.tree import Node
from torchprof_hooks.reports.hottest import Hottest, Kind, by_kind, summed_phases
from torchprof_hooks.reports.row_table import inclusive_device_time, inclusive_time
from torchprof_hooks.reports.screen.terminal import Line
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
    """The layers that are shown, in the order of lines: the hottest ones where they
    take most of their time, those around them, and the most expensive of the others.
    Where there is no room for all around the hottest ones, the outermost are left
    out."""
    layers = list(_folded(tree))
    places = [each for each in layers if each.kind == hot and each.node.self_ns > 0]
    hottest = max(places, key=lambda each: each.node.self_ns, default=None)
    way = _with_those_around(hottest)
    if len(way) > max_rows:
        return _cut(way, max_rows)
    shown = set(map(id, way))
    least_ns = _LEAST_SHARE * wall_ns
    others = [each for each in layers if id(each) not in shown]
    others = [each for each in others if each.node.cumulative_ns >= least_ns]
    # Equal ones stay in their order: layers before what they call.
    others.sort(key=lambda each: -each.node.cumulative_ns)
    shown.update(map(id, others[: max_rows - len(way)]))
    return [each for each in layers if id(each) in shown]


def _with_those_around(layers: Layers | None) -> list[Layers]:
    """The layers and those around them, the outermost first."""
    way: list[Layers] = []
    while layers is not None:
        way.insert(0, layers)
        layers = layers.around
    return way


def _cut(way: Sequence[Layers], max_rows: int) -> list[Layers]:
    """The innermost layers, with nothing around the first of them."""
    shown: list[Layers] = []
    for layers in way[len(way) - max_rows :]:
        shown.append(replace(layers, around=shown[-1] if shown else None))
    return shown


def _folded(tree: Node) -> Iterator[Layers]:
    """All layers, each before those that they call, the most expensive first."""
    coming = _inside(tree, None)
    while coming:
        layers = coming.pop()
        yield layers
        coming += _inside(layers.node, layers)


def _inside(node: Node, around: Layers | None) -> list[Layers]:
    """The layers that a node calls, the most expensive last."""
    called = (child for child in node.children if child.kind in _SHOWN_KINDS)
    found = [
        Layers(kind, _together(alike), len({node.name for node in alike}), around)
        for kind, alike in by_kind(called).items()
    ]
    found.sort(key=lambda each: -each.node.cumulative_ns)
    return found[::-1]


def _together(alike: Sequence[Node]) -> Node:
    return replace(
        alike[0],
        compiled=any(node.compiled for node in alike),
        phases=summed_phases(alike),
        children=tuple(child for node in alike for child in node.children),
    )
