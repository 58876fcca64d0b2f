"""The tree of modules, shortened: layers of a kind share one row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from torchprof_hooks.documents.build.layers import own_ns
from torchprof_hooks.documents.build.tables import (
    call_columns,
    share_column,
)
from torchprof_hooks.documents.build.view import View
from torchprof_hooks.documents.document import Column, Table
from torchprof_hooks.profiles.kinds import (
    LayerKind,
    by_kind,
    count_of,
    kind_of,
    without_numbers,
)
from torchprof_hooks.profiles.names import FUSED_CLASS
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.totals import summed_phases
from torchprof_hooks.profiles.tree import Node

#: The most rows.
_ROWS: Final = 14
#: The least share of the time for which layers are shown.
_LEAST_SHARE: Final = 0.01
#: Kinds of rows that are shown. The table of phases shows the others.
_SHOWN_KINDS: Final = ("module", "communication")


@dataclass(frozen=True, eq=False)
class Layers:
    """Layers of a kind that the same layers call.

    node: the sum of all of them, with their inner calls.
    count: how many modules they are.
    around: the layers that call them; None if they are outermost.
    """

    kind: LayerKind
    node: Node
    count: int
    around: Layers | None

    @property
    def name(self) -> str:
        """The name of the module; of several modules, the name of their kind."""
        return self.node.name if self.count == 1 else self.kind.name

    @cached_property
    def depth(self) -> int:
        """How many layers are around them."""
        return 0 if self.around is None else self.around.depth + 1

    @property
    def label(self) -> str:
        """``blocks.*: 12 Block``, without what the line of `around` shows already."""
        marks = " [compiled]" * self.node.compiled
        name = self._short_name()
        kind = self.node.class_name if self.node.kind == "module" else ""
        is_said = kind in ("", name, FUSED_CLASS) if self.count == 1 else not kind
        kind = count_of(self.count, kind) if self.count > 1 else kind
        return name + ("" if is_said else f": {kind}") + marks

    def _short_name(self) -> str:
        if self.around is None:
            return self.name
        outer, kind = f"{self.around.name}.", f"{self.around.kind.name}."
        if self.name.startswith(outer):
            return self.name.removeprefix(outer)
        if self.kind.name.startswith(kind):
            return self.kind.name.removeprefix(kind)
        if self.kind.name.startswith(without_numbers(outer)):  # in one that departs
            return self.kind.name.removeprefix(without_numbers(outer))
        # One that departs, in layers that do not: its number is printed.
        return self.name.removeprefix(f"{outer.partition('.*')[0]}.")


def folded_modules(view: View) -> Table:
    """The most expensive layers as a tree, with one row for layers of a kind, and one
    for each that departs from its kind. The hottest ones are always shown, and marked
    where they take most: not if memory ran out, as time is beside the point then."""
    memory = view.profile.memory
    marks = not (memory and memory.failure) or memory.failure.steps_after > 0
    hot, apart = view.hottest, view.departing
    hottest = {kind_of(row, apart) for row in hot.rows} if hot else set()
    shown, importance = _ranked(view, hottest)
    nodes = [layers.node for layers in shown]
    totals, whole_ns = [node.cumulative_ns for node in nodes], view.shown.wall_ns
    columns = [
        *call_columns(nodes),
        share_column("%", totals, whole_ns, "share"),
        share_column("own %", [n.self_ns for n in nodes], whole_ns, "self_share"),
        *flag_columns(view, nodes, [layers.kind for layers in shown]),
        *_details(shown),
    ]
    return Table(
        "layers",
        "",
        f"module{view.of_shown and ' (loop)'}",
        [layers.label for layers in shown],
        columns,
        names=[layers.name for layers in shown],
        depths=[layers.depth for layers in shown],
        importance=importance,
        most=_ROWS,
        tones=[
            "hot" if marks and not rank and layers.kind in hottest else ""
            for rank, layers in zip(importance, shown, strict=True)
        ],
        left_out="",
    )


def flag_columns(
    view: View, rows: Sequence[Row], kinds: Iterable[LayerKind]
) -> list[Column]:
    """What is unusual about the layers in these rows, if anything is. It is about all
    layers of a kind: it stands where these take most."""
    if not view.unusual:
        return []
    by_time = sorted(enumerate(kinds), key=lambda n: own_ns(rows[n[0]], view.device))
    places = {kind: n for n, kind in by_time}
    texts: defaultdict[int, list[str]] = defaultdict(list)
    for one in view.unusual:
        if one.kind in places:
            texts[places[one.kind]].append(one.text)
    flags = [", ".join(texts[n]) for n in range(len(rows))]
    return [Column("note", "text", flags, "flags")] if any(flags) else []


def _details(shown: Sequence[Layers]) -> list[Column]:
    """The contents of labels, as columns for programs."""
    nodes = [layers.node for layers in shown]
    counts = [
        layers.count if layers.node.kind == "module" else None for layers in shown
    ]
    classes, own = [n.class_name for n in nodes], [n.self_ns for n in nodes]
    return [
        Column("self", "ns", own, "self_ns", is_detail=True),
        Column("class", "text", classes, "class_name", is_detail=True),
        Column("modules", "count", counts, is_detail=True),
    ]


def _ranked(view: View, hot: Collection[LayerKind]) -> tuple[list[Layers], list[int]]:
    """The layers that may be shown, in the order of lines, and how important each is:
    the hottest ones first, at the place where they take most time, then those around
    them, those with flags, and the others by time. Those that take little time are left
    out."""
    layers = list(folded(view.tree, apart=view.departing))
    hottest = [each for each in layers if each.kind in hot]
    most = max(hottest, key=lambda each: own_ns(each.node, view.device), default=None)
    way = set[int]()
    around = most
    while around is not None:
        way.add(id(around))
        around = around.around
    flagged = {one.kind for one in view.unusual}
    least_ns = _LEAST_SHARE * view.shown.wall_ns
    shown = [e for e in layers if id(e) in way or e.node.cumulative_ns >= least_ns]
    # The sort is stable: of equal layers, callers stay before the called.
    order = sorted(
        range(len(shown)),
        key=lambda n: (
            shown[n] is not most,
            id(shown[n]) not in way,
            shown[n].kind not in flagged,
            -shown[n].node.cumulative_ns,
        ),
    )
    ranks = {n: rank for rank, n in enumerate(order)}
    return shown, [ranks[n] for n in range(len(shown))]


def folded(
    tree: Node,
    kinds: Collection[str] | None = _SHOWN_KINDS,
    apart: Collection[str] = (),
) -> Iterator[Layers]:
    """All layers, each before the layers that it calls, the most expensive first.

    kinds: of rows; None: all.
    apart: names of layers that have a row of their own.
    """
    coming = _inside(tree, None, kinds, apart)
    while coming:
        layers = coming.pop()
        yield layers
        coming += _inside(layers.node, layers, kinds, apart)


def _inside(
    node: Node,
    around: Layers | None,
    kinds: Collection[str] | None,
    apart: Collection[str],
) -> list[Layers]:
    """The layers that a node calls, the most expensive last (for `folded`)."""
    called = (each for each in node.children if kinds is None or each.kind in kinds)
    found = [
        Layers(kind, _together(alike), len({node.name for node in alike}), around)
        for kind, alike in by_kind(called, apart).items()
    ]
    found.sort(key=lambda each: -each.node.cumulative_ns)
    return found[::-1]


def _together(alike: Sequence[Node]) -> Node:
    return replace(
        alike[0],
        compiled=any(node.compiled for node in alike),
        phases=summed_phases(node.phases for node in alike),
        children=tuple(child for node in alike for child in node.children),
    )
