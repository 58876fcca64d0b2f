"""The calls of a profile as a tree in a table, with their times."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from torchprof_hooks.profiles.names import Phase, SortBy
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.tree import Node
from torchprof_hooks.reports.row_table import (
    inclusive_device_time,
    inclusive_time,
    sort_value,
)
from torchprof_hooks.reports.table import (
    Column,
    count_column,
    filled_columns,
    format_table,
    percent,
    plural,
    share_column,
)
from torchprof_hooks.reports.units import format_times

#: A node with its depth in the tree.
PlacedNode = tuple[int, Node]


def _own(phase: Phase) -> Callable[[Node], int]:
    """Own time; 0 (left blank) without inner calls, where it is the time with them."""
    return lambda node: node.phases[phase].self_ns if node.children else 0


_COLUMNS: Final[tuple[Column[Node], ...]] = (
    Column("forward", inclusive_time("forward"), is_kept=True),
    Column("self", _own("forward")),
    Column("backward", inclusive_time("backward")),
    Column("self", _own("backward")),
    Column("recompute", inclusive_time("recompute")),
    Column("self", _own("recompute")),
    Column("device", inclusive_device_time),
    Column("total", lambda node: node.cumulative_ns),
)

#: The number of a layer in a qualified name.
_NUMBER: Final = re.compile(r"\.\d+(?=\.|$)")


def without_numbers(module_name: str) -> str:
    """A name that layers of one kind have in common: ``Net.blocks.*.norm``."""
    return _NUMBER.sub(".*", module_name)


def placed_nodes(profile: Profile, sort_by: SortBy | None) -> list[PlacedNode]:
    """All nodes of the tree but the top, each before those below it.

    sort_by: the column by which the nodes below one node are sorted, the largest first;
        None for the order of calls.
    """
    if sort_by is None:
        return list(profile.tree().walk())[1:]
    value = sort_value(sort_by, _COLUMNS)
    nodes: list[PlacedNode] = []
    coming = [(0, profile.tree())]  # no recursion: calls can be as deep as Python goes
    while coming:
        depth, node = coming.pop()
        nodes.append((depth, node))
        children = sorted(node.children, key=lambda child: -value(child))
        coming += [(depth + 1, child) for child in reversed(children)]
    return nodes[1:]


def select_nodes(
    nodes: Sequence[PlacedNode], max_rows: int, sort_by: SortBy | None
) -> list[PlacedNode]:
    """The nodes with the largest values, in their places, with those of their kind.

    Layers of one kind (``blocks.0.norm``, ``blocks.1.norm``, ...) are shown all or not
    at all, so that chance does not choose among equals, unless there are too many of
    them for any to be shown otherwise. With a node, those around it are shown as well.
    """
    kinds: dict[str, list[int]] = {}
    for position, (_, node) in enumerate(nodes):
        kinds.setdefault(without_numbers(node.name), []).append(position)
    value = sort_value(sort_by or "total", _COLUMNS)
    costs = [value(node) for _, node in nodes]
    ranked = sorted(kinds.values(), key=lambda k: (-max(costs[n] for n in k), k[0]))
    callers = _callers(nodes)
    shown = set[int]()
    for kind in ranked:
        more = _with_callers(kind, callers, shown)
        if len(more) > max_rows:
            break
        shown = more
    if not shown:
        for position in sorted(range(len(nodes)), key=lambda n: (-costs[n], n)):
            more = _with_callers([position], callers, shown)
            shown = more if len(more) <= max_rows else shown
    return [nodes[n] for n in sorted(shown)]


def _with_callers(
    positions: Sequence[int], callers: Sequence[int], shown: set[int]
) -> set[int]:
    """The positions that are shown, with these nodes and those around them."""
    more = shown.union(positions)
    for position in positions:
        around = callers[position]
        while around >= 0 and around not in more:
            more.add(around)
            around = callers[around]
    return more


def _callers(nodes: Sequence[PlacedNode]) -> list[int]:
    """The position of the node around each node, -1 for the outermost."""
    last_at: dict[int, int] = {}  # by depth
    callers = []
    for position, (depth, _) in enumerate(nodes):
        callers.append(last_at.get(depth - 1, -1))
        last_at[depth] = position
    return callers


def time_tree(
    profile: Profile, shown: Sequence[PlacedNode], unit: str, width: int
) -> str:
    """The table of the nodes that are shown."""
    nodes = [node for _, node in shown]
    times = filled_columns(_COLUMNS, nodes, lambda all_ns: format_times(all_ns, unit))
    columns = [
        count_column("calls", (node.calls for node in nodes)),
        *times,
        share_column((node.cumulative_ns for node in nodes), profile.wall_ns),
    ]
    return format_table(["module", *tree_labels(shown)], columns, width)


def tree_labels(shown: Sequence[PlacedNode]) -> Iterator[str]:
    """The labels of the lines."""
    names: list[str] = [""]  # of the nodes around, by depth
    for depth, node in shown:
        marks = " [compiled]" * node.compiled + " [shared]" * bool(node.aliases)
        yield "  " * (depth - 1) + short_label(node, names[depth - 1]) + marks
        names[depth:] = [node.name]


def short_label(node: Node, parent_name: str) -> str:
    """The name, without what is shown of the parent already, and the class."""
    name = node.name.removeprefix(parent_name + ".")
    if node.kind != "module" or name == node.class_name:
        return name
    return f"{name}: {node.class_name}"


def footnotes(
    profile: Profile, nodes: Sequence[PlacedNode], shown: Sequence[PlacedNode]
) -> Iterator[str]:
    """Lines about the rows that are not shown, and about other names of modules."""
    hidden_ns = sum(node.self_ns for _, node in nodes)
    hidden_ns -= sum(node.self_ns for _, node in shown)
    if len(nodes) > len(shown):
        rest = plural(len(nodes) - len(shown), "more row")
        yield f"... {rest}, {percent(hidden_ns, profile.wall_ns)}"
    shared = {node.name: node.aliases for _, node in shown if node.aliases}
    for name, aliases in sorted(shared.items()):
        yield f"[shared] {name} is also {', '.join(aliases)}"
