"""Cells of a profile grouped into rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import add
from typing import Any, Final, NamedTuple

from torchprof_hooks.profiles.cells import (
    Cells,
    Chain,
    Infos,
    call_site,
    enclosing_module,
    with_counted,
    without_functions,
    without_modules,
)
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import (
    BACKWARD_PHASES,
    GROUPINGS,
    MODULE_PHASES,
    Grouping,
    Kind,
    Phase,
    check_grouping,
)
from torchprof_hooks.profiles.totals import NOTHING, Totals


@dataclass(frozen=True, slots=True)
class Row:
    """Everything that was booked on one module, function, or group of these.

    name: qualified name of the module; or the name of the class or function; or, when
        grouped by call, module and function with the shapes of its inputs.
    class_name: class of the module, name of the function ("" for other rows).
    kind: "module", "function", "optimizer", "backward" (backward time that no module
        owns), "data" (waiting for batches), "waiting" (for gradients of other
        processes), "communication" (one row for each collective), "compiling"
        (torch.compile), "garbage" (Python's full collections of it), "outside" (the
        rest of the loop, or of the modules), "profiler" (profiler overhead) or
        "not measured" (the steps that were not).
    aliases: other names of a shared module.
    compiled: whether it runs code made by torch.compile.
    phases: `Totals` for "forward", "backward" and "recompute"; rows that are neither
        modules nor functions also have the phase that is their kind.
    module: the module around a function call, or the module itself ("": none, or more
        than one).
    implementation: what runs a function (see `ModuleInfo`).
    inputs, autocast: when grouped by call, the types of a function's inputs, and the
        type to which autocast converts them (see `ModuleInfo`).
    """

    name: str
    class_name: str
    kind: Kind
    aliases: tuple[str, ...]
    compiled: bool
    phases: Mapping[Phase, Totals]
    module: str = ""
    implementation: str = ""
    inputs: tuple[str, ...] = ()
    autocast: str = ""

    @property
    def self_ns(self) -> int:
        """Own time in all phases, in nanoseconds."""
        return sum(totals.self_ns for totals in self.phases.values())

    @property
    def cumulative_ns(self) -> int:
        """Time with inner calls, in all phases, in nanoseconds."""
        return sum(totals.cumulative_ns for totals in self.phases.values())

    @property
    def device_self_ns(self) -> int:
        """Own time on the device's clock in all phases, in nanoseconds."""
        return sum(totals.device_self_ns for totals in self.phases.values())

    @property
    def device_cumulative_ns(self) -> int:
        """Nanoseconds with inner calls on the device's clock, in all phases."""
        return sum(totals.device_cumulative_ns for totals in self.phases.values())

    @property
    def flops(self) -> int:
        """Floating-point operations in all phases, where functions were measured and
        torch has formulas for them (see `Totals`)."""
        return sum(totals.flops for totals in self.phases.values())

    @property
    def flops_cumulative(self) -> int:
        """Floating-point operations with inner calls, in all phases."""
        return sum(totals.flops_cumulative for totals in self.phases.values())

    @property
    def calls(self) -> int:
        """Of a module, its forward calls; of a function, its calls outside of backward
        passes (so also those in an optimizer's step); of data loading, the batches that
        the loop waited for; of any other row, all calls."""
        if self.kind == "module":
            return self.phases["forward"].calls
        if self.kind == "function":
            return sum(
                totals.calls
                for phase, totals in self.phases.items()
                if phase not in BACKWARD_PHASES
            )
        return sum(totals.calls for totals in self.phases.values())


class PhaseSums:
    """Adds up the cells of one row or node."""

    def __init__(self) -> None:
        self._own: dict[Phase, Totals] = {}
        self._inside: dict[Phase, tuple[Any, ...]] = {}

    def add_own(self, phase: Phase, totals: Totals) -> None:
        """Add a cell of the row itself."""
        # Also the first cell is added to `NOTHING`, which clears the shortest call of
        # one without calls.
        self._own[phase] = self._own.get(phase, NOTHING) + totals

    def add_inside(self, phase: Phase, totals: Totals) -> None:
        """Add a cell of the row, or of a call inside of it."""
        inside = self._inside.get(phase, NOTHING.own)
        self._inside[phase] = tuple(map(add, inside, totals.own))

    def result(self) -> Mapping[Phase, Totals]:
        """The sums by phase; the three phases of modules are always there."""
        phases = dict.fromkeys((*MODULE_PHASES, *self._inside))
        return {phase: self._sum(phase) for phase in phases}

    def _sum(self, phase: Phase) -> Totals:
        if phase not in self._inside:
            return NOTHING
        own = self._own.get(phase, NOTHING)
        found = own.with_inside(self._inside[phase])
        if own.calls or own.memory.peak_bytes:
            # The peak of a call includes its inner calls. That of an inner call may be
            # higher, as it counts from its own begin, if memory was freed before it.
            memory = found.memory_cumulative.with_peak(own.memory.peak_bytes)
            if memory is not found.memory_cumulative:
                return replace(found, memory_cumulative=memory)
        return found


def group_rows(cells: Cells, infos: Infos, by: Grouping) -> tuple[Row, ...]:
    """See `Profile.rows`."""
    check_grouping(by, GROUPINGS)
    cells = with_counted(cells)
    if by == "function":
        cells, infos = without_modules(cells, infos)
    elif by != "call":
        cells, infos = without_functions(cells, infos)
    groups = _Groups(infos, by)
    sums: dict[str, PhaseSums] = {}
    for (path, phase), totals in cells.items():
        names = groups.around(path)
        for name in set(names):  # a set: nested calls of one group count once
            sums.setdefault(name, PhaseSums()).add_inside(phase, totals)
        sums[names[-1]].add_own(phase, totals)
    rows = (Row(**row_fields(*groups.merged[name], sums[name])) for name in sums)
    return tuple(sorted(rows, key=expensive_first))


def expensive_first(row: Row) -> tuple[int, str]:
    """Sorting key for rows and nodes."""
    return -row.cumulative_ns, row.name


class _Group(NamedTuple):
    name: str
    info: ModuleInfo
    module: str

    def merge(self, other: _Group) -> _Group:
        module = self.module if self.module == other.module else ""
        return _Group(self.name, self.info.merge(other.info), module)


#: For each name called at a place: the name of its group, and the same for calls in it.
_Below = dict[str, tuple[str, "_Below"]]


class _Groups:
    """The groups that calls belong to, by their places in the tree.

    merged: all groups by name.
    """

    def __init__(self, infos: Infos, by: str) -> None:
        self._infos = infos
        self._by = by
        self._top: _Below = {}
        self.merged: dict[str, _Group] = {}

    def around(self, path: Chain) -> list[str]:
        """The names of the groups of all calls in a chain, outermost first."""
        names = []
        below = self._top
        for depth, name in enumerate(path, start=1):
            if name not in below:
                below[name] = self._known(path[:depth]), {}
            group_name, below = below[name]
            names.append(group_name)
        return names

    def _known(self, path: Chain) -> str:
        group = _group(path, self._infos, self._by)
        known = self.merged.get(group.name)
        self.merged[group.name] = group.merge(known) if known else group
        return group.name


def _group(path: Chain, infos: Infos, by: str) -> _Group:
    """The group of the call at the end of `path`."""
    name = path[-1]
    info = infos[name]
    if by == "module":
        return _Group(name, info, name if info.kind == "module" else "")
    if by == "call":
        return _Group(call_site(path, infos), info, enclosing_module(path, infos))
    if info.kind == "function":
        function = ModuleInfo(
            info.class_name,
            "function",
            compiled=info.compiled,
            implementation=info.implementation,
        )
        return _Group(info.class_name, function, "")
    if info.kind == "module":
        name = info.class_name
    return _Group(name, ModuleInfo(info.class_name, info.kind), "")


#: Fields that a row takes over from the `ModuleInfo` of its name.
_DESCRIBED: Final = (
    *("class_name", "kind", "aliases", "compiled", "implementation"),
    *("inputs", "autocast"),
)


def row_fields(
    name: str, info: ModuleInfo, module: str, sums: PhaseSums
) -> dict[str, Any]:
    """The fields of a `Row`, or of a `Node`, by name."""
    described = {name: getattr(info, name) for name in _DESCRIBED}
    return {"name": name, "module": module, "phases": sums.result(), **described}
