"""The finished record of a run. It is immutable; reports and exports are computed from
it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial, reduce
from types import MappingProxyType
from typing import Any, Final, TypeVar

from torchprof_hooks.profiles.amounts import added_by, sums_of
from torchprof_hooks.profiles.cells import (
    BEFORE_CELL,
    Cells,
    grouped_by,
    place_by,
    with_others,
    without_kind,
)
from torchprof_hooks.profiles.collectives import Collectives, sum_of
from torchprof_hooks.profiles.measured_steps import ALL_MEASURED, MeasuredSteps
from torchprof_hooks.profiles.memory import MemorySummary, merge_summaries
from torchprof_hooks.profiles.modules import ModuleInfo, all_modules
from torchprof_hooks.profiles.names import (
    BEFORE_NAME,
    GROUPINGS,
    Grouping,
    Kind,
    Phase,
    check_grouping,
    united,
)
from torchprof_hooks.profiles.options import check_flag
from torchprof_hooks.profiles.parts import (
    Part,
    PartName,
    Parts,
    merged_parts,
    whole_of,
)
from torchprof_hooks.profiles.peak import Peak, higher
from torchprof_hooks.profiles.phases import PHASES, kind_of_other
from torchprof_hooks.profiles.program import Program, only_program
from torchprof_hooks.profiles.provenance import Processes, all_of
from torchprof_hooks.profiles.rows import Place, Row, group_rows, tree_of_places
from torchprof_hooks.profiles.step_history import NO_HISTORY, SlowStep, StepHistory
from torchprof_hooks.profiles.step_times import NO_STEP_TIMES, StepTimes
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.profiles.trace.device_step import DeviceStep, better_known
from torchprof_hooks.profiles.tree import Node, build_tree

P = TypeVar("P", bound="ProfileData")

#: Kinds of rows that stand for calls.
_CALLED: Final = ("module", "function")


def _all_names(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*one, *other}))


@dataclass(frozen=True)
class ProfileData:
    """Where the time of a run went. The public class is `torchprof_hooks.Profile`,
    which has reports and files, too.

    parts: the start-up and the loop, or only the loop if these cannot be told apart;
        and the steps that were not measured, if there are any. `cells`, `wall_ns`,
        `steps` and `step_times` of the whole run are their sums.
    modules: a description of each name in the chains of cells.
    aborted_calls: calls that an exception went through.
    overhead_ns: the profiler overhead in the measured steps, as far as it is counted:
        calls times what each takes at least; of a whole program, at its beginning and
        end, too. What is known exactly of it is in cells of the phase "profiler", and
        in no other cell.
    measured: how much longer measured steps took than others, if there are others;
        and how many steps were traced.
    step_history: the measured training steps in the order of time, and the slowest of
        them; of the whole run, also in its parts.
    devices: names of the devices whose clock was read, sorted.
    memory: which memory was measured, and its peak; None if none was.
    undivided_passes: backward passes over nodes that several threads made, and that
        have the same numbers: such a pass is booked as a whole, outside modules.
    not_measured: what is not measured, or may be wrong with this torch, one line
        each, sorted.
    core: the core that has measured, "native" or "python"; both in a merged profile of
        both.
    core_reason: why the native core was not used.
    collectives: what was exchanged with other processes, by function and group.
    peak: the most operations per second that the device can do, None if unknown.
    items: tokens, samples or the like in the steps, 0 if nobody said.
    device_asked, device_waits: how often, at begins and ends of calls, the profiler
        asked the device whether it had done all its work; and how often it had, and so
        idled.
    steps_with_device_times, steps_without_device_times: in how many of the measured
        steps and evaluation calls the clock of the device was read, and in how many it
        was not: their device times are estimated from the others, by calls.
    device_step: what devices did in a traced step, with the kernels of each module;
        None if nobody asked for that. Of merged profiles, one of their steps.
    program: what is known of a whole program; None for other runs.
    provenance: the processes that have measured: one, unless profiles were merged.
        Equality does not depend on it.
    """

    parts: Parts = added_by(merged_parts, default=())
    modules: Mapping[str, ModuleInfo] = added_by(all_modules, default_factory=dict)
    aborted_calls: int = 0
    overhead_ns: int = 0
    measured: MeasuredSteps = added_by(MeasuredSteps.merge, default=ALL_MEASURED)
    step_history: StepHistory = added_by(StepHistory.merge, default=NO_HISTORY)
    devices: tuple[str, ...] = added_by(_all_names, default=())
    memory: MemorySummary | None = added_by(merge_summaries, default=None)
    undivided_passes: int = 0
    not_measured: tuple[str, ...] = added_by(_all_names, default=())
    core: str = added_by(partial(united, separator=", "), default="")
    core_reason: str = added_by(partial(united, separator="; "), default="")
    collectives: Collectives = added_by(lambda a, b: sum_of((*a, *b)), default=())
    peak: Peak | None = added_by(higher, default=None)
    items: int = 0
    device_asked: int = 0
    device_waits: int = 0
    steps_with_device_times: int = 0
    steps_without_device_times: int = 0
    device_step: DeviceStep | None = added_by(better_known, default=None)
    program: Program | None = added_by(only_program, default=None)
    provenance: Processes = added_by(all_of, default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "modules", MappingProxyType(dict(self.modules)))

    def __reduce__(self) -> tuple[Any, ...]:
        values = (getattr(self, each.name) for each in fields(self))
        plain = (dict(v) if isinstance(v, MappingProxyType) else v for v in values)
        return type(self), tuple(plain)

    @cached_property
    def _whole(self) -> Part:
        return self.parts[0] if len(self.parts) == 1 else whole_of(self.parts)

    @property
    def cells(self) -> Cells:
        """The finest record. For each (chain of module and function calls, phase), the
        `Totals` of the calls at the chain's end. Their cumulative fields are 0: they
        follow from the chains. The cells' `self_ns` add up to `wall_ns`."""
        return self._whole.cells

    @property
    def wall_ns(self) -> int:
        """Nanoseconds between entering and leaving the measured blocks, summed over
        threads."""
        return sum(part.wall_ns for part in self.parts)

    @property
    def steps(self) -> int:
        """Training steps, measured or not (see `StepTimes` for where a step ends)."""
        return sum(part.steps for part in self.parts)

    @property
    def measured_steps(self) -> int:
        """How many of the training steps were measured."""
        return self.steps - self.unmeasured.steps

    @property
    def step_times(self) -> StepTimes:
        """Durations of training steps and of evaluation calls, as far as they are
        known."""
        every = (part.step_times for part in self.parts)
        return reduce(StepTimes.merge, every, NO_STEP_TIMES)

    @property
    def slow_steps(self) -> tuple[SlowStep, ...]:
        """The slowest training steps, and what they did differently, the one first that
        took most more than usual. Up to 16; () if no step was slow."""
        return self.step_history.slowest

    @property
    def is_empty(self) -> bool:
        """Whether no module and no function was called."""
        return not any(self.modules[path[-1]].kind in _CALLED for path, _ in self.cells)

    @cached_property
    def has_functions(self) -> bool:
        """Whether functions were called while they were recorded."""
        return any(info.kind == "function" for info in self.modules.values())

    @property
    def attributed_ns(self) -> int:
        """Nanoseconds that are booked on modules, functions and optimizers."""
        return sum(
            totals.self_ns
            for (path, _), totals in self.cells.items()
            if self.modules[path[-1]].kind in (*_CALLED, "optimizer")
        )

    def phase_times_ns(self, *, on_device: bool = False) -> Counter[Phase]:
        """Own times by phase, in nanoseconds, those of functions included, of the
        phases that have any, in the order of `PHASES`; of steps that were not measured,
        no phase is known.

        on_device: whether by the device's clock.
        """
        times: Counter[Phase] = Counter()
        infos = with_others(self.modules)
        for key, totals in self.only_measured.cells.items():
            _, phase = place_by("module", key, infos) if self.has_functions else key
            times[phase] += totals.device_self_ns if on_device else totals.self_ns
        return Counter({phase: times[phase] for phase in PHASES if times[phase]})

    def rows(self, by: Grouping = "module") -> tuple[Row, ...]:
        """The rows of a table, the most cumulative time first. Optimizers, waiting for
        data and the like have rows as well, so that the own times of all rows add up to
        `wall_ns`, however they are grouped.

        Args:
            by: "module" gives one row per module, and "class" one per class of modules;
                both contain the functions that modules call. "function" gives one row
                per function, and one for the own time of modules. "call" gives one row
                per module, and one per function, shapes of its inputs and module that
                calls it.

        Raises:
            TypeError, ValueError: `by` is not one of these.

        Example:
            >>> [(row.name, row.calls, row.self_ns) for row in profile.rows(by="class")]
            [('Linear', 20, 1500000), ('(outside modules)', 0, 300000)]
        """
        check_grouping(by, GROUPINGS)
        if by not in self._rows:
            self._rows[by] = group_rows(self._places(by), by)
        return self._rows[by]

    @cached_property
    def _rows(self) -> dict[Grouping, tuple[Row, ...]]:
        return {}

    def tree(self, *, functions: bool = False) -> Node:
        """The calls as a tree. The top `Node` is the whole run, its children are the
        calls from outside of all modules, and so on inwards. Modules come first, in the
        order of their first calls, then the other rows, the most expensive first.

        Args:
            functions: whether functions are nodes too, or parts of their modules.

        Raises:
            TypeError: `functions` is not True or False.
        """
        check_flag("functions", functions)
        return build_tree(self._places("call" if functions else "module"))

    def _places(self, by: Grouping) -> Place:
        """All calls but those that have no rows in a grouping."""
        kind = without_kind(by)
        if kind not in self._found_places:
            grouped = grouped_by(self.cells, self.modules, by)
            self._found_places[kind] = tree_of_places(*grouped)
        return self._found_places[kind]

    @cached_property
    def _found_places(self) -> dict[Kind | None, Place]:
        return {}

    @property
    def start_up(self: P) -> P:
        """What was measured until the first training step of each run had ended. Empty
        without torch optimizers: then that end is not known."""
        return self._only("start-up")

    @property
    def loop(self: P) -> P:
        """What was measured after `start_up`. Shortest and longest calls are known for
        the whole run only: here, they are bounds that these imply."""
        return self._only("loop")

    @property
    def only_measured(self: P) -> P:
        """The start-up and the loop, without the steps that were not measured."""
        return self._only("start-up", "loop")

    @property
    def unmeasured(self) -> Part:
        """The steps that were not measured: how many there were, and how long they
        took."""
        found = (part for part in self.parts if part.name == "unmeasured")
        return next(found, Part("unmeasured"))

    def _only(self: P, *names: PartName) -> P:
        """Some parts of the run. Numbers that are known for the whole run only, such as
        that of items, are divided in proportion to steps, to calls, or to time."""
        parts = tuple(part for part in self.parts if part.name in names)
        if parts == self.parts:
            return self
        found = replace(self, parts=parts)
        calls = 0, 1  # that only devices need
        if self.device_asked:
            calls = _calls(parts), max(_calls(self.parts), 1)
        whole_ns = max(self.wall_ns - self.unmeasured.wall_ns, 1)
        return replace(
            found,
            items=self.items * found.steps // max(self.steps, 1),
            device_asked=self.device_asked * calls[0] // calls[1],
            device_waits=self.device_waits * calls[0] // calls[1],
            overhead_ns=self.overhead_ns * found.wall_ns // whole_ns,
        )

    def with_time_before(self: P, before_ns: int) -> P:
        """The same run, with `before_ns` nanoseconds before measuring added to its
        start-up."""
        if not before_ns:
            return self
        before = Part("start-up").with_cells({BEFORE_CELL: Totals(self_ns=before_ns)})
        info = ModuleInfo(kind=kind_of_other(BEFORE_NAME))
        return replace(
            self,
            parts=merged_parts(self.parts, (before,)),
            modules={BEFORE_NAME: info, **self.modules},
        )

    def with_cells(
        self: P, cells: Cells, modules: Mapping[str, ModuleInfo] | None = None
    ) -> P:
        """The same run as one part, with other cells and the wall time that they add up
        to.

        modules: descriptions of the names in the cells; None: the present ones.
        """
        part = replace(self._whole, name="loop").with_cells(cells)
        infos = self.modules if modules is None else modules
        return replace(self, parts=(part,), modules=infos)

    def merge(self: P, other: ProfileData) -> P:
        """Both runs as one profile. Whole numbers add up. So do errors, as if both were
        wrong in the same direction. The order does not matter.

        Raises:
            TypeError: `other` is not a profile.
        """
        if not isinstance(other, ProfileData):
            raise TypeError(f"other must be a Profile, not {other!r}")
        names = (each.name for each in fields(self))
        found: dict[str, Any] = dict(zip(names, sums_of(self, other), strict=True))
        return replace(self, **found)


def _calls(parts: Parts) -> int:
    return sum(totals.calls for part in parts for totals in part.cells.values())
