"""Tables of times: all modules as a tree, functions, their call sites, and the rows of
any grouping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final

from torchprof_hooks.documents.document import Column, Table, Value
from torchprof_hooks.documents.render.units import best_time
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.kinds import (
    LayerKind,
    grouped,
    kind_of,
    without_numbers,
)
from torchprof_hooks.profiles.many_shapes import with_common_names
from torchprof_hooks.profiles.names import (
    BACKWARD_PHASES,
    FUSED_CLASS,
    MODULE_GROUPINGS,
    MODULE_PHASES,
    MODULES_NAME,
    Grouping,
    Phase,
    SortBy,
)
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.totals import summed_phases
from torchprof_hooks.profiles.tree import Node

#: The most rows that texts show by default.
_MODULES_SHOWN: Final = 40
_FUNCTIONS_SHOWN: Final = 20
_CALL_SITES_SHOWN: Final = 10

#: A node with its depth in the tree, from 0.
PlacedNode = tuple[int, Node]


def in_phase(row: Row, phase: Phase) -> int:
    """Time in a phase with inner calls."""
    return row.phases[phase].cumulative_ns


def own_in_phase(row: Row, phase: Phase) -> int:
    """Own time in a phase."""
    return row.phases[phase].self_ns


def sort_value(sort_by: SortBy, *, of_tree: bool = False) -> Callable[[Row], float]:
    """A function from a row to the number by which it is sorted. Numbers of phases and
    devices are with inner calls in trees, and without in tables."""
    names = {"calls": "calls", "self": "self_ns", "total": "cumulative_ns"}
    names["device"] = "device_cumulative_ns" if of_tree else "device_self_ns"
    if sort_by in names:
        return attrgetter(names[sort_by])
    phase = in_phase if of_tree else own_in_phase
    return lambda row: phase(row, sort_by)  # type: ignore[arg-type]


def placed_nodes(tree: Node, sort_by: SortBy | None) -> list[PlacedNode]:
    """All nodes of the tree but the top, each before those below it.

    sort_by: the column by which the nodes below one node are sorted, the largest first;
        None for the order of calls.
    """
    value = sort_value(sort_by, of_tree=True) if sort_by else None
    return [*tree.walk(-1, value)][1:]


def tree_of(
    name: str,
    title: str,
    nodes: Sequence[PlacedNode],
    columns: Sequence[Column],
    sort_by: SortBy | None = None,
) -> Table:
    """A table of nodes of the tree.

    Layers of a kind share one rank: that of the layer with the largest value.
    """
    rows = [node for _, node in nodes]
    kinds = [kind_of(node) for node in rows]
    value = sort_value(sort_by or "total", of_tree=True)
    ranks: dict[LayerKind, int] = {}
    for place in sorted(range(len(rows)), key=lambda n: -value(rows[n])):
        ranks.setdefault(kinds[place], len(ranks))
    return Table(
        name,
        title,
        "module",
        list(labels_of(nodes)),
        columns,
        names=[node.name for node in rows],
        depths=[depth for depth, _ in nodes],
        importance=[ranks[kind] for kind in kinds],
        most=_MODULES_SHOWN,
    )


def labels_of(nodes: Sequence[PlacedNode]) -> Iterator[str]:
    """The names of nodes, without what those around them say already."""
    names: list[str] = []  # of the nodes around, by depth
    for depth, node in nodes:
        marks = " [compiled]" * node.compiled + " [shared]" * bool(node.aliases)
        around = f"{names[depth - 1]}." if depth else ""
        name = node.name.removeprefix(around) if around else node.name
        if node.kind == "module" and node.class_name not in (name, FUSED_CLASS):
            name += f": {node.class_name}"
        yield name + marks
        names[depth:] = [node.name]


def module_tree(
    profile: ProfileData,
    nodes: Sequence[PlacedNode],
    sort_by: SortBy | None,
    of: str = "",
) -> Table:
    """All modules with their times, and optimizers, data and so on beside them."""
    rows = [node for _, node in nodes]
    # A row without inner calls has the same time with and without: shown once.
    is_leaf = [not row.children for row in rows]
    own = [
        replace(
            column, title="self", drop_order=1, values=_without(column.values, is_leaf)
        )
        for column in phase_columns(rows, own_in_phase, "_self_ns")
    ]
    totals, whole_ns = [row.cumulative_ns for row in rows], max(profile.wall_ns, 1)
    columns = call_columns(rows, own)
    columns.append(share_column("%", totals, whole_ns, "share"))
    shared = {row.name: row.aliases for row in rows if row.aliases}
    title = f"Modules{of}: time with inner calls; self: without"
    return replace(
        tree_of("modules", title, nodes, columns, sort_by),
        left_out="{count} more rows, {share}",
        shares=[row.self_ns / whole_ns for row in rows],
        notes=[
            f"[shared] {name} is also {', '.join(aliases)}"
            for name, aliases in sorted(shared.items())
        ],
    )


def _without(values: Sequence[Value], is_blank: Sequence[bool]) -> list[Value]:
    return [None if no else v for v, no in zip(values, is_blank, strict=True)]


def phase_columns(
    rows: Sequence[Row],
    value: Callable[[Row, Phase], float | None],
    name: str = "_ns",
    drop_order: tuple[int, int, int] = (6, 6, 5),
) -> list[Column]:
    """A column of times for each phase of modules. name: the end of columns' names."""
    return [
        Column(phase, "ns", [value(row, phase) for row in rows], phase + name, number)
        for phase, number in zip(MODULE_PHASES, drop_order, strict=True)
    ]


def call_columns(rows: Sequence[Row], own: Sequence[Column] = ()) -> list[Column]:
    """The columns of calls and cumulative times that all tables with such times have:
    on the screen, in the full text, on the page and in JSON.

    own: columns of own times, each of which goes beside that of its phase.
    """
    inside = phase_columns(rows, in_phase, drop_order=(3, 3, 3) if own else (4, 4, 2))
    beside = [[column] for column in own] or [[] for _ in inside]
    pairs = zip(inside, beside, strict=True)
    on_device = [row.device_cumulative_ns for row in rows]
    return [
        Column(
            "calls", "count", [row.calls for row in rows], drop_order=2 if own else 1
        ),
        *(column for first, others in pairs for column in (first, *others)),
        Column("device", "ns", on_device, "device_ns", 3),
        Column("total", "ns", [row.cumulative_ns for row in rows], "cumulative_ns"),
    ]


def share_column(title: str, times: Sequence[float], whole: float, name: str) -> Column:
    """A column of the shares of numbers in a whole."""
    shares = [number / max(whole, 1) for number in times]
    return Column(title, "share", shares, name, shows_zeros=True)


def own_columns(profile: ProfileData, rows: Sequence[Row]) -> list[Column]:
    """The columns of calls and own times, with the share of own time in all time."""
    own = [row.self_ns for row in rows]
    return [
        Column("calls", "count", [row.calls for row in rows]),
        *phase_columns(rows, own_in_phase, "_self_ns"),
        Column("device", "ns", [r.device_self_ns for r in rows], "device_self_ns"),
        Column("self", "ns", own, "self_ns"),
        share_column("%", own, profile.wall_ns, "self_share"),
    ]


def largest_first(rows: Iterable[Row], sort_by: SortBy) -> list[Row]:
    """Rows sorted by one of their numbers; equal ones by own time, then by name."""
    value = sort_value(sort_by)
    return sorted(rows, key=lambda row: (-value(row), -row.self_ns, row.name))


def label(row: Row) -> str:
    """The name as people read it, marked if the row runs compiled code."""
    return row.name + " [compiled]" * row.compiled


def function_tables(
    profile: ProfileData, sort_by: SortBy, of: str = ""
) -> Iterator[Table]:
    """A table of functions, with a row for the own time of modules; and a table of call
    sites, by function, module around and shapes of inputs."""
    by_name = profile.rows("function")
    functions = [row for row in by_name if row.kind == "function"]
    ranked = largest_first(functions, sort_by)
    ranked += [row for row in by_name if row.name == MODULES_NAME]
    table = _own_table(profile, ranked, "function")
    kernels = f"{MODULES_NAME}: in compiled code, kernels that are no functions"
    is_compiled = any(info.compiled for info in profile.modules.values())
    yield replace(
        table,
        notes=[*table.notes, *[kernels] * is_compiled],
        title=f"Functions{of}: own time, without the calls that they make",
        # The own time of modules is always shown.
        importance=[-1 if r.name == MODULES_NAME else n for n, r in enumerate(ranked)],
        most=_FUNCTIONS_SHOWN,
    )
    sites = largest_first(call_sites(profile), sort_by)
    title = f"Call sites{of}: own time of functions, by module (*: layers of a kind) "
    yield replace(
        _own_table(profile, sites, "call site"),
        title=title + "and shapes of inputs",
        most=_CALL_SITES_SHOWN,
    )


def _own_table(profile: ProfileData, rows: Sequence[Row], noun: str) -> Table:
    memory, notes, columns = profile.memory, [], own_columns(profile, rows)
    if memory and memory.source:
        peaks = [max(t.memory.peak_bytes for t in row.phases.values()) for row in rows]
        used = [_own_used(row) for row in rows]
        columns.append(Column("used", "bytes", used, "used_bytes", drop_order=1))
        columns.append(Column("peak", "bytes", peaks, "peak_bytes", drop_order=2))
        if any(peaks):
            notes.append(
                "used: own bytes per forward call; peak: highest rise in a call"
            )
    table = row_table(f"{noun.replace(' ', '_')}s", noun, rows, columns, profile)
    return replace(table, left_out=f"{{count}} more {noun}s, {{share}}", notes=notes)


def row_table(
    name: str,
    corner: str,
    rows: Sequence[Row],
    columns: Sequence[Column],
    profile: ProfileData,
) -> Table:
    """A table, without a title, of rows that are sorted already."""
    return Table(
        name,
        "",
        corner,
        [label(row) for row in rows],
        columns,
        names=[row.name for row in rows],
        left_out="{count} more rows, {share}",
        shares=[row.self_ns / max(profile.wall_ns, 1) for row in rows],
    )


def call_sites(profile: ProfileData) -> Iterator[Row]:
    """Calls of functions, by module around and shapes of inputs. Those in layers of a
    kind (``blocks.0.norm``, ``blocks.1.norm``, ...) share one row: else, such layers
    would fill the table."""

    def kind(row: Row) -> LayerKind:
        call = row.name.removeprefix(row.module)
        return LayerKind(without_numbers(row.module) + call, row.class_name)

    rows = with_common_names(profile).rows("call")
    functions = (row for row in rows if row.kind == "function")
    for found, alike in grouped(functions, kind).items():
        name = found.name if len(alike) > 1 else alike[0].name
        yield replace(
            alike[0], name=name, phases=summed_phases(row.phases for row in alike)
        )


def _own_used(row: Row) -> float:
    used_bytes = sum(
        totals.memory.used_bytes
        for phase, totals in row.phases.items()
        if phase not in BACKWARD_PHASES
    )
    return used_bytes / row.calls if row.calls else 0


def grouped_table(profile: ProfileData, by: Grouping, sort_by: SortBy) -> Table:
    """The rows of `Profile.rows(by)`, sorted by one of their numbers, the largest
    first."""
    rows = largest_first(profile.rows(by), sort_by)
    title = f"{best_time(profile.wall_ns)} wall, by {by}: self: own time; total: with "
    title += "the calls that they make"
    if by not in MODULE_GROUPINGS and not profile.has_functions:
        title += " (functions were not measured)"
    totals = [row.cumulative_ns for row in rows]
    columns = own_columns(profile, rows)
    columns.insert(-1, Column("total", "ns", totals, "cumulative_ns", drop_order=5))
    table = row_table(f"by_{by}", by, rows, columns, profile)
    return replace(table, title=title, most=_MODULES_SHOWN)
