"""What devices did in one traced step: idle time, and the kernels of modules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from torchprof_hooks.documents.build.module_table import Layers, folded
from torchprof_hooks.documents.build.tables import (
    in_phase,
    labels_of,
    phase_columns,
    placed_nodes,
    share_column,
)
from torchprof_hooks.documents.build.view import View
from torchprof_hooks.documents.document import Block, Column, Facts, Table
from torchprof_hooks.documents.render.units import best_time
from torchprof_hooks.documents.words import percent, plural
from torchprof_hooks.profiles.cells import CellKey, add_cell, grouped_by
from torchprof_hooks.profiles.kinds import without_numbers
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.phases import kind_of_other
from torchprof_hooks.profiles.rows import tree_of_places
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.profiles.trace.device_step import DeviceStep, DeviceUse
from torchprof_hooks.profiles.trace.host_places import UNSEEN_NAME
from torchprof_hooks.profiles.trace.kernels import OTHER_THREADS_NAME
from torchprof_hooks.profiles.tree import Node, build_tree

#: The most rows of what the host did while a device idled, on a screen.
_MOST_IDLE: Final = 4
#: The most modules in the line about kernels.
_MOST_NAMED: Final = 3
#: The most rows of the table of kernels in a text, and kernels below a module there.
_MOST_KERNELS: Final = 40
_BELOW: Final = 3
#: What says little in the name of a kernel: its type, those of its arguments, and where
#: torch has it.
_LITTLE: Final = re.compile(
    r"^void |\bat::native::|\(anonymous namespace\)::|(?<=\S)\([^()]*\)$"
)


def idle_blocks(view: View, most: int = _MOST_IDLE) -> Iterator[Block]:
    """How much devices idled in one step, and what the host did meanwhile.

    most: the most rows of that.
    """
    step = view.profile.device_step
    if step is None:
        return
    if step.reason:
        text = f"Device: idle time and kernels are not known: {step.reason}"
        yield Facts("device_idle", "", [text])
    elif not step.devices:
        text = f"Device: no kernels of a device were recorded in step {step.step}"
        yield Facts("device_idle", "", [text])
    for use in step.devices:
        yield _idle_block(step, use, most)


def _idle_block(step: DeviceStep, use: DeviceUse, most: int) -> Block:
    """The idle time of one device. Layers of a kind share one row, as in the tree."""
    step_ns = max(step.step_ns, 1)
    title = f"{use.device}: busy {percent(use.busy_ns, step_ns)} of step {step.step} "
    title += f"({best_time(step.step_ns)})"
    if not use.rows:
        return Facts("device_idle", "", [title])
    times: Counter[str] = Counter()
    for row in use.rows:
        times[_place(row.module, row.phase)] += row.idle_ns
    ranked = sorted(times.items(), key=lambda item: (-item[1], item[0]))
    shares = [ns / step_ns for _, ns in ranked]
    return Table(
        "device_idle",
        f"{title}, idle {best_time(use.idle_ns)}",
        "while the host was in",
        [place for place, _ in ranked],
        [
            Column("idle", "ns", [ns for _, ns in ranked], "idle_ns"),
            share_column("%", shares, 1, "share"),
        ],
        most=most,
        left_out="{count} other places, {share}",
        shares=shares,
    )


def _place(module: str, phase: str) -> str:
    """Layers of a kind, and the phase. A name in brackets implies its phase."""
    place = without_numbers(module)
    return place if place[0] == "(" else f"{place}, {phase}"


def kernel_lines(view: View) -> Iterator[Facts]:
    """Which modules launched most of what each device ran, in a line."""
    step = view.profile.device_step or DeviceStep()
    for use in step.devices:
        whole_ns = max(_sum_ns(use), 1)
        times: Counter[str] = Counter()
        for row in use.kernels:
            times[_place(row.module, row.phase)] += row.busy_ns
        most = times.most_common(_MOST_NAMED)
        named = [f"{place} {percent(ns, whole_ns)}" for place, ns in most]
        text = f"{_kernels_text(step, use)}, most in {', '.join(named)}"
        if most:
            yield Facts("kernels", "", [text])


def kernel_tables(view: View, *, all_rows: bool = False) -> Iterator[Table]:
    """For each device, a tree of the modules that launched what it ran in the step, and
    the kernels by name below them.

    all_rows: whether layers of a kind have rows of their own, as on a page.
    """
    step = view.profile.device_step or DeviceStep()
    for use in step.devices:
        if use.kernels:
            tree = _tree(view, use, has_stamps=len(step.devices) == 1)
            rows = _all_rows(tree) if all_rows else _few_rows(tree)
            lines = [line for line in rows if line.node.cumulative_ns]
            yield _kernel_table(step, use, lines)


class _Line(NamedTuple):
    label: str
    name: str
    depth: int
    node: Node

    @property
    def own_ns(self) -> int:
        """Of a module, the time of the kernels that it launched itself."""
        below = self.node.children
        return sum(each.cumulative_ns for each in below if each.kind == "function")


def _all_rows(tree: Node) -> Iterator[_Line]:
    nodes = placed_nodes(tree, "total")
    for label, (depth, node) in zip(labels_of(nodes), nodes, strict=True):
        yield _Line(label, node.name, depth, node)


def _few_rows(tree: Node) -> Iterator[_Line]:
    """Layers of a kind as one row, with their longest kernels."""
    below: Counter[Layers | None] = Counter()
    for each in folded(tree, kinds=None):
        if each.node.kind == "function":
            below[each.around] += 1
            if below[each.around] > _BELOW:
                continue
        yield _Line(each.label, each.name, each.depth, each.node)


def _tree(view: View, use: DeviceUse, has_stamps: bool) -> Node:
    """The calls that launched kernels, with these as functions below them. Times are
    durations of kernels; those of the device, stamps of a step on average.

    has_stamps: whether stamps are known to be of this device.
    """
    shown, infos = view.shown, dict(view.profile.modules)
    cells: dict[CellKey, Totals] = {}
    places = {*infos, *(name for row in use.kernels for name in row.path)}
    for name in places:
        infos.setdefault(name, _info(name))
    for row in use.kernels:
        for kernel in row.kernels:
            name = kernel.name + " (kernel)" * (kernel.name in places)
            infos[name] = ModuleInfo(name, "function")
            totals = Totals(kernel.calls, kernel.busy_ns)
            add_cell(cells, ((*row.path, name), row.phase), totals)
    if has_stamps and shown.steps:
        stamped, of_stamped = grouped_by(shown.cells, shown.modules, "module")
        infos = {**of_stamped, **infos}
        for key, totals in stamped.items():
            if device_ns := round(totals.device_self_ns / shown.steps):
                add_cell(cells, key, Totals(device_self_ns=device_ns))
    return build_tree(tree_of_places(cells, infos))


def _info(name: str) -> ModuleInfo:
    """The description of what ran in the traced step alone."""
    if name[0] != "(":
        return ModuleInfo("Module")
    is_outside = name in (UNSEEN_NAME, OTHER_THREADS_NAME)
    return ModuleInfo(kind="outside" if is_outside else kind_of_other(name))


def _kernel_table(step: DeviceStep, use: DeviceUse, lines: Sequence[_Line]) -> Table:
    rows, whole_ns = [line.node for line in lines], _sum_ns(use)
    labels = [
        _LITTLE.sub("", line.label) if line.node.kind == "function" else line.label
        for line in lines
    ]
    totals = [row.cumulative_ns for row in rows]
    own = [None if each.node.kind == "function" else each.own_ns for each in lines]
    stamps = [row.device_cumulative_ns for row in rows]
    ranked = sorted(range(len(rows)), key=lambda n: -totals[n])
    ranks = {n: rank for rank, n in enumerate(ranked)}
    notes = ["busy: durations of kernels, copies and fills, without gaps"]
    if any(stamps):
        notes[0] += "; device: from begin to end of calls, with gaps, mean of a step"
    if use.overlap_ns:
        less = f"{best_time(use.kernels_ns)}, {best_time(use.overlap_ns)} less than"
        notes.append(f"Streams ran at once: the device was busy for {less} the sum")
    columns = [
        Column("count", "count", [_count(row) for row in rows], "kernels", 1),
        *phase_columns(rows, in_phase, drop_order=(3, 3, 3)),
        Column("self", "ns", own, "self_ns", 2),
        Column("busy", "ns", totals, "busy_ns"),
        share_column("%", totals, whole_ns, "share"),
        Column("device", "ns", stamps, "device_ns", 4),
    ]
    return Table(
        "kernels",
        f"{_kernels_text(step, use)}, with inner calls; self: without",
        "launched by",
        labels,
        [column for column in columns if any(column.values)],
        names=[line.name for line in lines],
        depths=[line.depth for line in lines],
        importance=[ranks[n] for n in range(len(rows))],
        most=_MOST_KERNELS,
        left_out="{count} more rows, {share}",
        shares=[(ns or 0) / max(whole_ns, 1) for ns in own],
        notes=notes,
    )


def _kernels_text(step: DeviceStep, use: DeviceUse) -> str:
    count = sum(kernel.calls for row in use.kernels for kernel in row.kernels)
    text = f"{use.device}: {plural(count, 'kernel')} of step {step.step}"
    return f"{text} took {best_time(_sum_ns(use))}"


def _sum_ns(use: DeviceUse) -> int:
    return use.kernels_ns + use.overlap_ns


def _count(node: Node) -> int:
    inside = (totals for _, each in node.walk() for totals in each.phases.values())
    return sum(totals.calls for totals in inside)
