"""Cells of a profile grouped into rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import add
from typing import Any, Final, NamedTuple

from torchprof_hooks.profiles.cells import (
    Cells,
    Chain,
    Infos,
    site_name,
)
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import (
    BACKWARD_PHASES,
    MODULE_PHASES,
    Grouping,
    Kind,
    Phase,
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


class Sums:
    """The sums of cells of one row, or of one place, by phase.

    own: of the calls themselves.
    inside: what belongs to calls around, too (see `Totals.own`), of these calls and of
        all inside.
    """

    __slots__ = ("_phases", "inside", "own")

    def __init__(self, first: Sums | None = None) -> None:
        self.own: dict[Phase, Totals] = {**first.own} if first else {}
        self.inside: dict[Phase, tuple[Any, ...]] = {**first.inside} if first else {}
        self._phases: Mapping[Phase, Totals] | None = None

    def add_own(self, phase: Phase, totals: Totals) -> None:
        """Add calls of the row itself."""
        # Also the only cell is added to `NOTHING`, which clears the shortest call of
        # one without calls.
        self.own[phase] = self.own.get(phase, NOTHING) + totals

    def add_inside(self, sums: Mapping[Phase, tuple[Any, ...]]) -> None:
        """Add calls of the row, and those inside of them."""
        for phase, more in sums.items():
            known = self.inside.get(phase)
            self.inside[phase] = tuple(map(add, known, more)) if known else more

    def phases(self) -> Mapping[Phase, Totals]:
        """The totals by phase, when all is added; the three phases of modules are
        always there."""
        if self._phases is None:  # else, they are those of a node, or of a row
            found = dict.fromkeys(MODULE_PHASES, NOTHING)
            for phase, inside in self.inside.items():
                found[phase] = self.own.get(phase, NOTHING).with_inside(inside)
            self._phases = found
        return self._phases


class Place(Sums):
    """A place in the tree of calls, with the places below it by name.

    module: the innermost module around it, or itself.
    """

    __slots__ = ("below", "info", "module", "name")

    def __init__(self, name: str, info: ModuleInfo, module: str) -> None:
        super().__init__()
        self.name = name
        self.info = info
        self.module = name if info.kind == "module" else module
        self.below: dict[str, Place] = {}

    def at(self, path: Chain, infos: Infos) -> list[Place]:
        """The places of a chain of calls below this one, made where they are
        missing."""
        found, place = [], self
        for name in path:
            below = place.below.get(name)
            if below is None:
                below = place.below[name] = Place(name, infos[name], place.module)
            found.append(below)
            place = below
        return found

    def walk(self) -> list[Place]:
        """This place and all inside, each before those below it."""
        places = [self]
        for place in places:
            places += place.below.values()
        return places


def new_tree() -> Place:
    """The top of a tree of calls, which stands for the whole run."""
    return Place("", ModuleInfo(kind="outside"), "")


def tree_of_places(cells: Cells, infos: Infos) -> Place:
    """All places of calls, with their sums."""
    top = new_tree()
    for (path, phase), totals in cells.items():
        top.at(path, infos)[-1].add_own(phase, totals)
    for place in reversed(top.walk()):  # from inside: each place is added once
        place.add_inside({phase: totals.own for phase, totals in place.own.items()})
        for below in place.below.values():
            place.add_inside(below.inside)
    return top


def group_rows(top: Place, by: Grouping) -> tuple[Row, ...]:
    """The rows of a tree of places (see `Profile.rows`)."""
    sums: dict[str, Sums] = {}
    groups: dict[str, _Group] = {}
    coming = [(place, frozenset[str]()) for place in top.below.values()]
    for place, around in coming:  # grows
        group = group_of(place, by)
        name = group.name
        known = sums.get(name)
        if known is None:  # most groups are at one place
            groups[name], sums[name] = group, place
        else:
            groups[name] = group.merge(groups[name])
            if isinstance(known, Place):
                known = sums[name] = Sums(known)
            for phase, totals in place.own.items():
                known.add_own(phase, totals)
            if name not in around:  # nested calls of one group count once
                known.add_inside(place.inside)
        around |= {name}
        coming += [(below, around) for below in place.below.values()]
    rows = (Row(**row_fields(*groups[name], found)) for name, found in sums.items())
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


def group_of(place: Place, by: Grouping) -> _Group:
    """The group that the calls at a place belong to."""
    name, info = place.name, place.info
    if by == "module":
        return _Group(name, info, name if info.kind == "module" else "")
    if by == "call":
        return _Group(site_name(name, info, place.module), info, place.module)
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


def row_fields(name: str, info: ModuleInfo, module: str, sums: Sums) -> dict[str, Any]:
    """The fields of a `Row`, or of a `Node`, by name."""
    described = {name: getattr(info, name) for name in _DESCRIBED}
    return {"name": name, "module": module, "phases": sums.phases(), **described}
