"""The tables of a page: all rows, with all their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final

from torchprof_hooks.documents.build import facts
from torchprof_hooks.documents.build.layers import heats
from torchprof_hooks.documents.build.module_table import flag_columns
from torchprof_hooks.documents.build.tables import (
    PlacedNode,
    call_columns,
    call_sites,
    largest_first,
    placed_nodes,
    row_table,
    share_column,
    tree_of,
)
from torchprof_hooks.documents.build.view import View
from torchprof_hooks.documents.document import (
    Column,
    Facts,
    Table,
    Unit,
)
from torchprof_hooks.documents.words import percent
from torchprof_hooks.profiles.kinds import kind_of
from torchprof_hooks.profiles.names import GROUPINGS, MODULE_GROUPINGS, MODULE_PHASES
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.totals import NOTHING, Totals

#: A tree with functions that has more nodes than this is left out: the page would be
#: slow, and the tables have all functions.
_LARGEST_TREE: Final = 30_000
#: The details of a row in a phase: title, unit, name and value. Used and retained bytes
#: are per call.
_DETAILS: Final[Sequence[tuple[str, Unit, str, Callable[[Totals], float]]]] = (
    ("calls", "count", "calls", attrgetter("calls")),
    ("self", "ns", "self_ns", attrgetter("self_ns")),
    ("mean", "ns", "mean_ns", lambda t: round(t.mean_ns)),
    ("std", "ns", "std_ns", lambda t: round(t.std_ns)),
    ("min", "ns", "min_ns", attrgetter("min_ns")),
    ("max", "ns", "max_ns", attrgetter("max_ns")),
    ("device self", "ns", "device_self_ns", attrgetter("device_self_ns")),
    ("device", "ns", "device_cumulative_ns", attrgetter("device_cumulative_ns")),
    ("FLOPs self", "flops", "self_flops", attrgetter("flops")),
    ("FLOPs", "flops", "flops", attrgetter("flops_cumulative")),
    ("used", "bytes", "used_bytes", lambda t: round(t.mean_used_bytes)),
    ("retained", "bytes", "retained_bytes", lambda t: round(t.mean_retained_bytes)),
    ("peak", "bytes", "peak_bytes", attrgetter("memory_cumulative.peak_bytes")),
)


def numbers_of(view: View) -> dict[str, object]:
    """The numbers of a whole run, for programs."""
    profile, times = view.profile, view.profile.step_times
    start_up_ns = view.start_up.wall_ns if view.start_up else 0
    longer: dict[str, object] = {}
    if found := facts.compared_blocks(profile.measured):
        blocks = len(profile.measured.longer)
        longer = {"longer": {"blocks": blocks, **found._asdict()}}
    return {
        "wall_ns": profile.wall_ns,
        "start_up_ns": start_up_ns,
        "shown_ns": view.shown.wall_ns,
        "attributed_ns": view.shown.attributed_ns,
        "overhead_ns": profile.overhead_ns,
        "steps": profile.steps,
        "unmeasured_steps": view.unmeasured.steps,
        "unmeasured_ns": view.unmeasured.wall_ns,
        **longer,
        "first_step_ns": round(times.first_mean_ns),
        "step_mean_ns": round(times.mean_ns),
        "step_median_ns": round(times.quantile_ns(0.5)),
        "step_p90_ns": round(times.quantile_ns(0.9)),
        "evaluations": times.evaluations,
        "evaluation_mean_ns": round(times.evaluation_mean_ns),
        "aborted_calls": profile.aborted_calls,
        "undivided_passes": profile.undivided_passes,
        "not_measured": list(profile.not_measured),
        "devices": list(profile.devices),
    }


def trees(view: View) -> Iterator[Table]:
    """All modules as a tree; and if functions were measured, another tree with them."""
    title = f"Modules{view.of_shown}"
    yield _tree("tree.modules", title, view, placed_nodes(view.tree, None))
    if view.shown.has_functions:
        nodes = placed_nodes(view.shown.tree(functions=True), None)
        if len(nodes) <= _LARGEST_TREE:
            title = f"Modules and functions{view.of_shown}"
            yield _tree("tree.functions", title, view, nodes)


def _tree(name: str, title: str, view: View, nodes: Sequence[PlacedNode]) -> Table:
    rows = [node for _, node in nodes]
    whole_ns = max(view.shown.wall_ns, 1)
    kinds = (kind_of(row, view.departing) for row in rows)
    columns = [*_columns(rows, whole_ns), *flag_columns(view, rows, kinds)]
    return replace(
        tree_of(name, title, nodes, columns),
        tones=heats(rows, view.device, view.whole_ns),
        shares=[row.self_ns / whole_ns for row in rows],
        drawing="tree",
    )


def row_tables(view: View) -> Iterator[Table]:
    """A table of rows for each grouping."""
    for by in GROUPINGS if view.shown.has_functions else MODULE_GROUPINGS:
        found = call_sites(view.shown) if by == "call" else view.shown.rows(by)
        rows = largest_first(found, "self")
        columns = _columns(rows, view.shown.wall_ns)
        yield replace(
            row_table(f"rows.{by}", by, rows, columns, view.shown),
            title=f"by {by}",
            tones=heats(rows, view.device, view.whole_ns),
            section=f"Own time{view.of_shown}, the most first",
        )


def _columns(rows: Sequence[Row], whole_ns: int) -> list[Column]:
    """Columns of calls and times; and as details, of all else that is known in each
    phase. Columns without any value are left out."""
    own = [row.self_ns for row in rows]
    columns = [
        *call_columns(rows),
        Column("self", "ns", own, "self_ns"),
        share_column("own %", own, whole_ns, "self_share"),
        *(
            Column(title, "text", texts, title, is_detail=True)
            for title, texts in _descriptions(rows).items()
        ),
        *_details(rows),
    ]
    return [column for column in columns if any(column.values)]


def _descriptions(rows: Sequence[Row]) -> dict[str, list[str]]:
    return {
        "class": [row.class_name if row.class_name != row.name else "" for row in rows],
        "kind": ["" if row.kind == "module" else row.kind for row in rows],
        "compiled": ["compiled" * row.compiled for row in rows],
        "inputs": [", ".join(row.inputs) for row in rows],
        "autocast": [row.autocast for row in rows],
        "also": [", ".join(row.aliases) for row in rows],
    }


def _details(rows: Sequence[Row]) -> Iterator[Column]:
    """The numbers of each phase of modules, and of all other phases together: a row
    that is no module has only one of those."""
    found: dict[str, list[Totals]] = {
        phase: [row.phases[phase] for row in rows] for phase in MODULE_PHASES
    }
    for phase, every in {**found, "other": [_others(row) for row in rows]}.items():
        # Many rows have no time in most phases.
        if any(totals is not NOTHING for totals in every):
            for title, unit, name, value in _DETAILS:
                if name == "retained_bytes" and phase != "forward":
                    continue  # other phases free what they did not allocate
                numbers = [0 if t is NOTHING else value(t) for t in every]
                yield Column(
                    f"{phase} {title}", unit, numbers, f"{phase}_{name}", is_detail=True
                )


def _others(row: Row) -> Totals:
    others = (t for phase, t in row.phases.items() if phase not in MODULE_PHASES)
    return sum(others, NOTHING)


def measured(view: View) -> Facts:
    """What was measured, and how."""
    profile, shown = view.profile, view.shown
    attributed = percent(shown.attributed_ns, shown.wall_ns)
    lines = [f"{attributed} of the time is in modules, functions and optimizers"]
    if view.start_up:
        lines.append("the start-up is a column of the phases, and in no other table")
    lines += facts.measuring(view)
    if profile.devices:
        lines.append(f"devices: {', '.join(profile.devices)}")
    if not profile.has_functions:
        lines.append(f"functions were not measured: {view.hints.functions} does")
    if profile.memory is None:
        lines.append(f"memory was not measured: {view.hints.memory} does")
    return Facts("measuring", "What was measured, and how", lines)
