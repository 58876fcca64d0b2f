"""Cells of a profile grouped into rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any, NamedTuple

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
from torchprof_hooks.profiles.totals import NOTHING, Totals, summed_phases


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
        return sum([totals.self_ns for totals in self.phases.values()])

    @property
    def cumulative_ns(self) -> int:
        """Time with inner calls, in all phases, in nanoseconds."""
        return sum([totals.cumulative_ns for totals in self.phases.values()])

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


#: By phase, what belongs to calls around, too (see `Totals.own`).
_Inside = dict[Phase, tuple[Any, ...]]


@dataclass(slots=True, eq=False)
class Place:
    """A place in the tree of calls, with the places below it by name.

    module: the innermost module around it, or itself.
    own: the sums of the calls themselves, by phase.
    inside: what belongs to calls around, too, of these calls and of all inside.
    """

    name: str
    info: ModuleInfo
    module: str
    below: dict[str, Place] = field(default_factory=dict)
    own: dict[Phase, Totals] = field(default_factory=dict)
    inside: _Inside = field(default_factory=dict)
    _phases: Mapping[Phase, Totals] | None = None

    def phases(self) -> Mapping[Phase, Totals]:
        """The totals by phase, when all is added."""
        if self._phases is None:  # else, they are those of a node, or of a row
            self._phases = _phases_of(self.own, self.inside)
        return self._phases

    def at(self, path: Chain, infos: Infos) -> list[Place]:
        """The places of a chain of calls below this one, made where they are
        missing."""
        found, place = [], self
        for name in path:
            below = place.below.get(name)
            if below is None:
                info = infos[name]
                module = name if info.kind == "module" else place.module
                below = place.below[name] = Place(name, info, module)
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
    top, places = new_tree(), dict[Chain, Place]()
    for (path, phase), totals in cells.items():
        place = places.get(path)
        if place is None:
            place = places[path] = top.at(path, infos)[-1]
        # The only cell of a phase is added to `NOTHING`, which clears the shortest call
        # of one without calls.
        place.own[phase] = place.own.get(phase, NOTHING) + totals
    for place in reversed(top.walk()):  # from inside: each place is added once
        place.inside = {phase: totals.own for phase, totals in place.own.items()}
        for below in place.below.values():
            _add_inside(place.inside, below.inside)
    return top


def _add_inside(found: _Inside, more: _Inside) -> None:
    for phase, sums in more.items():
        known = found.get(phase)
        found[phase] = tuple(map(add, known, sums)) if known else sums


def _phases_of(own: Mapping[Phase, Totals], inside: _Inside) -> Mapping[Phase, Totals]:
    """The totals by phase; the three phases of modules are always there."""
    found = dict.fromkeys(MODULE_PHASES, NOTHING)
    for phase, sums in inside.items():
        found[phase] = own.get(phase, NOTHING).with_inside(sums)
    return found


def group_rows(top: Place, by: Grouping) -> tuple[Row, ...]:
    """The rows of a tree of places (see `Profile.rows`)."""
    groups: dict[str, _Group] = {}
    places: dict[str, list[Place]] = {}
    nested: set[int] = set()
    coming = [(place, frozenset[str]()) for place in top.below.values()]
    for place, around in coming:  # grows
        group = group_of(place, by)
        name = group.name
        if name in groups:
            groups[name] = group.merge(groups[name])
            places[name].append(place)
        else:  # most groups are at one place
            groups[name], places[name] = group, [place]
        if name in around:
            nested.add(id(place))
        if place.below:
            around |= {name}
            coming += [(below, around) for below in place.below.values()]
    rows = (
        Row(*row_fields(*groups[name], _all_phases(alike, nested)))
        for name, alike in places.items()
    )
    return tuple(sorted(rows, key=lambda row: (-row.cumulative_ns, row.name)))


def _all_phases(places: Sequence[Place], nested: set[int]) -> Mapping[Phase, Totals]:
    """The totals of all places of a group; nested calls of it count once."""
    if len(places) == 1:
        return places[0].phases()
    own, inside = summed_phases(place.own for place in places), _Inside()
    for place in places:
        if id(place) not in nested:
            _add_inside(inside, place.inside)
    return _phases_of(own, inside)


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


def row_fields(
    name: str, info: ModuleInfo, module: str, phases: Mapping[Phase, Totals]
) -> tuple[Any, ...]:
    """The fields of a `Row`, or of a `Node`, in their order."""
    described = info.class_name, info.kind, info.aliases, info.compiled
    called = info.implementation, info.inputs, info.autocast
    return name, *described, phases, module, *called
