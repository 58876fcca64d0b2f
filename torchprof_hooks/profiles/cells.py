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
    Grouping,
    Kind,
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


def grouped_by(cells: Cells, infos: Infos, by: Grouping) -> tuple[Cells, Infos]:
    """The cells that rows of a grouping consist of, with `counted_ns`; and the
    descriptions of their names.

    by: "module", "class": as if functions had not been recorded. The own time of a
        function is added to that of the module that called it, in the same phase; if
        none did, it becomes time outside modules, or backward outside modules. So a
        function that an activation checkpoint calls again counts as recompute of its
        module. (Where functions are not recorded, nothing shows such a call, and its
        time counts as backward, unless it is made in a module that is recomputed.)
        "function": without modules: their own time is that of `MODULES_NAME`.
        "call": all.
    """
    if any(totals.flops for totals in cells.values()):
        # Not later: in modules, times of functions cannot be told from theirs.
        cells = {key: t.counted() if t.flops else t for key, t in cells.items()}
    gone = without_kind(by)
    names = {name for name, info in infos.items() if info.kind == gone}
    if not names:
        return cells, infos
    infos = with_others(infos)
    kept: dict[CellKey, Totals] = {}
    for key, totals in cells.items():
        if names.isdisjoint(key[0]):
            add_cell(kept, key, totals)
        else:
            found = totals.without_calls() if key[0][-1] in names else totals
            add_cell(kept, place_by(by, key, infos), found)
    return kept, infos


def without_kind(by: Grouping) -> Kind | None:
    """The kind of names that cells of a grouping are without."""
    if by == "call":
        return None
    return "module" if by == "function" else "function"


def place_by(by: Grouping, key: CellKey, infos: Infos) -> CellKey:
    """The cell on which a cell's own time is booked in such a grouping.

    infos: see `with_others`.
    """
    if by == "call":
        return key
    if by != "function":
        return place_without_functions(*key, infos)
    path, phase = key
    inner = tuple(name for name in path if infos[name].kind != "module")
    is_module = infos[path[-1]].kind == "module"
    return (*inner, *(MODULES_NAME,) * is_module), phase


def with_others(infos: Infos) -> Infos:
    """The descriptions of names, and of those that cells of a grouping may get."""
    return {**_NOT_MODULES, **infos}


def place_without_functions(path: Chain, phase: Phase, infos: Infos) -> CellKey:
    """The cell on which a cell's own time is booked if functions are not recorded."""
    around = tuple([name for name in path if infos[name].kind != "function"])
    if around == path:
        return path, phase
    if infos[path[-1]].kind != "function":
        return around, phase
    if not around:
        around = (BACKWARD_NAME if phase in BACKWARD_PHASES else OUTSIDE_NAME,)
    name = around[-1]
    kind = infos[name].kind if name in infos else kind_of_other(name)
    return around, PHASE_OF_KIND.get(kind, phase)


def enclosing_module(path: Chain, infos: Infos) -> str:
    """The innermost module of a chain, or ""."""
    modules = (name for name in reversed(path) if infos[name].kind == "module")
    return next(modules, "")


def call_site(path: Chain, infos: Infos) -> str:
    """The name of the call at the end of a chain. A function has the module around it
    in front of its name: ``Net.head: linear(32x64, 256x64)``."""
    return site_name(path[-1], infos[path[-1]], enclosing_module(path, infos))


def site_name(name: str, info: ModuleInfo, module: str) -> str:
    """The same of a call in `module`."""
    return f"{module}: {name}" if info.kind == "function" and module else name


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
