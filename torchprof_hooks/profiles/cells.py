"""Cells, the finest record of a run; and how to remove functions, or modules, from
them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import (
    AFTER_BACKWARD_NAME,
    AFTER_LAST_NAME,
    BACKWARD_NAME,
    BACKWARD_PHASES,
    BEFORE_NAME,
    MODULES_NAME,
    OUTSIDE_NAME,
    PROFILER_NAME,
    Phase,
)
from torchprof_hooks.profiles.phases import PHASE_OF_KIND, kind_of_other
from torchprof_hooks.profiles.totals import NOTHING, Totals

Chain = tuple[str, ...]

#: A chain of names, outermost first, and a phase.
CellKey = tuple[Chain, Phase]

#: The cells of time outside of all calls.
OUTSIDE_CELL: Final[CellKey] = ((OUTSIDE_NAME,), "outside")
AFTER_BACKWARD_CELL: Final[CellKey] = ((AFTER_BACKWARD_NAME,), "outside")
AFTER_LAST_CELL: Final[CellKey] = ((AFTER_LAST_NAME,), "outside")
BEFORE_CELL: Final[CellKey] = ((BEFORE_NAME,), "outside")
PROFILER_CELL: Final[CellKey] = ((PROFILER_NAME,), "profiler")

Cells = Mapping[CellKey, Totals]
Infos = Mapping[str, ModuleInfo]

_NOT_MODULES: Final[Infos] = {
    OUTSIDE_NAME: ModuleInfo(kind="outside"),
    BACKWARD_NAME: ModuleInfo(kind="backward"),
    MODULES_NAME: ModuleInfo(kind="outside"),
}


def outermost(cells: Cells, name: str, phase: Phase = "forward") -> Totals:
    """The totals of the outermost calls of `name`; zeros if there are none."""
    return cells.get(((name,), phase), NOTHING)


def sum_of_own_ns(cells: Cells) -> int:
    """The sum of the own times of all cells."""
    return sum(totals.self_ns for totals in cells.values())


def has_functions(infos: Infos) -> bool:
    """Whether any of the names is a function's."""
    return any(info.kind == "function" for info in infos.values())


def without_functions(cells: Cells, infos: Infos) -> tuple[Cells, Infos]:
    """Cells of modules only, as if functions had not been recorded.

    A function's own time is added to that of the module that called it, in the same
    phase. If no module called it, it becomes time outside modules, or backward outside
    modules. So a function that an activation checkpoint calls again counts as recompute
    of its module. (Where functions are not recorded, nothing shows such a call, and its
    time counts as backward, unless it is made in a module that is recomputed.)
    """
    if not has_functions(infos):
        return cells, infos
    infos = {**_NOT_MODULES, **infos}
    kept: dict[CellKey, Totals] = {}
    for (path, phase), totals in cells.items():
        key = place_without_functions(path, phase, infos)
        is_function = infos[path[-1]].kind == "function"
        add_cell(kept, key, totals.without_calls() if is_function else totals)
    return kept, infos


def place_without_functions(path: Chain, phase: Phase, infos: Infos) -> CellKey:
    """The cell on which a cell's own time is booked if functions are not recorded."""
    if all(infos[name].kind != "function" for name in path):
        return path, phase
    around = tuple(name for name in path if infos[name].kind != "function")
    if infos[path[-1]].kind != "function":
        return around, phase
    if not around:
        around = (BACKWARD_NAME if phase in BACKWARD_PHASES else OUTSIDE_NAME,)
    name = around[-1]
    kind = infos[name].kind if name in infos else kind_of_other(name)
    return around, PHASE_OF_KIND.get(kind, phase)


def without_modules(cells: Cells, infos: Infos) -> tuple[Cells, Infos]:
    """Cells of functions only; the own time of modules goes to cells `MODULES_NAME`."""
    infos = {**_NOT_MODULES, **infos}
    kept: dict[CellKey, Totals] = {}
    for (path, phase), totals in cells.items():
        inner = tuple(name for name in path if infos[name].kind != "module")
        if infos[path[-1]].kind == "module":
            add_cell(kept, ((*inner, MODULES_NAME), phase), totals.without_calls())
        else:
            add_cell(kept, (inner, phase), totals)
    return kept, infos


def with_counted(cells: Cells) -> Cells:
    """The same cells, with `counted_ns`: how much of their own time was in calls whose
    floating-point operations are known. Call it before functions become parts of
    modules: after that, the times of functions cannot be told from those of modules."""
    if not any(totals.flops for totals in cells.values()):
        return cells
    return {
        key: totals.counted() if totals.flops else totals
        for key, totals in cells.items()
    }


def enclosing_module(path: Chain, infos: Infos) -> str:
    """The innermost module of a chain, or ""."""
    modules = (name for name in reversed(path) if infos[name].kind == "module")
    return next(modules, "")


def call_site(path: Chain, infos: Infos) -> str:
    """The name of the call at the end of a chain. A function has the module around it
    in front of its name: ``Net.head: linear(32x64, 256x64)``."""
    name, module = path[-1], enclosing_module(path, infos)
    is_inside = infos[name].kind == "function" and module
    return f"{module}: {name}" if is_inside else name


def add_cell(cells: dict[CellKey, Totals], key: CellKey, totals: Totals) -> None:
    """Add `totals` to the cell `key`, which is made if it is missing."""
    cells[key] = cells[key] + totals if key in cells else totals


def add_outside(
    cells: dict[CellKey, Totals], outside: Totals, parts_ns: Mapping[CellKey, int]
) -> None:
    """Add the time outside of all calls.

    parts_ns: the parts of it that have cells of their own, as far as there is as much.
    """
    left_ns = outside.self_ns
    for key, part_ns in parts_ns.items():
        if part_ns := min(part_ns, max(left_ns, 0)):
            add_cell(cells, key, Totals(self_ns=part_ns))
            left_ns -= part_ns
    add_cell(cells, OUTSIDE_CELL, replace(outside, self_ns=left_ns))


def all_cells(one: Cells, other: Cells) -> dict[CellKey, Totals]:
    """The cells of two runs together."""
    cells = dict(one)
    for key, totals in other.items():
        add_cell(cells, key, totals)
    return cells
