"""The finished record of a run: immutable, can be saved and merged.

The code for rows, trees and reports is imported when they are asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from torchprof_hooks.profiles.cells import (
    CellKey,
    all_cells,
    broken_promise,
    has_functions,
    without_functions,
)
from torchprof_hooks.profiles.files.fields import OPTIONAL, Count
from torchprof_hooks.profiles.memory import MemorySummary, merge_summaries
from torchprof_hooks.profiles.modules import ModuleInfo, all_modules
from torchprof_hooks.profiles.names import Grouping, Phase, united
from torchprof_hooks.profiles.operations.utilisation import Peak, Rated, higher
from torchprof_hooks.profiles.options import check_flag, check_path
from torchprof_hooks.profiles.parts import (
    NO_FIRST_STEPS,
    FirstSteps,
    Parted,
    more_than_all,
)
from torchprof_hooks.profiles.ranks.collectives import Collectives, sum_of
from torchprof_hooks.profiles.ranks.provenance import Processes, all_of
from torchprof_hooks.profiles.reportable import Exportable, Reportable
from torchprof_hooks.profiles.step_times import NO_STEP_TIMES, StepTimes
from torchprof_hooks.profiles.totals import Totals

if TYPE_CHECKING:
    from torchprof_hooks.profiles.rows import Row
    from torchprof_hooks.profiles.tree import Node

#: Kinds of rows that stand for calls.
_CALLED = ("module", "function")


@dataclass(frozen=True, slots=True)
class Profile(Reportable, Exportable, Rated, Parted):
    """Where the time of a run went.

    cells: the finest record. For each (chain of module and function calls, phase) the
        `Totals` of the calls at its end, whose cumulative fields are 0 here: they
        follow from the chains. The cells' `self_ns` add up to `wall_ns`.
    modules: a description of each name in the chains.
    wall_ns: time between entering and leaving the measured blocks, summed over threads.
    steps: training steps that ended (see `StepTimes` for where a step ends).
    aborted_calls: calls that an exception went through.
    overhead_ns: estimate of the time that measuring added to `wall_ns`: the sum over
        the cells (see `Totals`), and the part that is measured exactly (planning of
        backward passes), which is a cell of its own. With `max_overhead`, what
        measuring has spent in all steps, if that is more.
    devices: names of the devices whose clock was read, sorted.
    device_asked, device_waits: at how many begins and ends of calls the device was
        asked whether it had done all its work; and how often it had, and so idled.
    memory: which memory was measured, and its peak; None if none was.
    undivided_passes: backward passes over nodes of several threads that have the same
        numbers, which are booked as a whole, outside of modules.
    unmeasured_steps, unmeasured_ns: training steps that were not measured because of
        `max_overhead`, and the time in them and while hooks were put on and taken off.
        No other field contains that time but `step_times`.
    not_measured: what cannot be measured with this torch, one line each, sorted.
    step_times: durations of training steps, measured or not, and of evaluation calls,
        as far as they are known.
    core: the core that has measured, "native" or "python"; both if both were merged.
    core_reason: why the native core was not used.
    collectives: what was exchanged with other processes, by function and group.
    peak: the most operations per second that the device can do, None if unknown.
    items: tokens, samples or the like in the measured steps, 0 if nobody said.
    first: what of all this came until the first steps of runs had ended, in which much
        is done for the first time (see `start_up` and `loop`).
    provenance: the processes that have measured, one unless profiles were merged.
        Profiles that differ in that alone are equal.
    """

    cells: Mapping[CellKey, Totals] = field(default_factory=dict)
    modules: Mapping[str, ModuleInfo] = field(default_factory=dict)
    wall_ns: Count = 0
    steps: Count = 0
    aborted_calls: Count = 0
    overhead_ns: Count = 0
    devices: tuple[str, ...] = ()
    memory: MemorySummary | None = None
    undivided_passes: Count = 0
    unmeasured_steps: Annotated[Count, OPTIONAL] = 0
    unmeasured_ns: Annotated[Count, OPTIONAL] = 0
    not_measured: Annotated[tuple[str, ...], OPTIONAL] = ()
    step_times: Annotated[StepTimes, OPTIONAL] = NO_STEP_TIMES
    core: Annotated[str, OPTIONAL] = ""
    core_reason: Annotated[str, OPTIONAL] = ""
    collectives: Annotated[Collectives, OPTIONAL] = ()
    peak: Annotated[Peak | None, OPTIONAL] = None
    items: Annotated[Count, OPTIONAL] = 0
    device_asked: Annotated[Count, OPTIONAL] = 0
    device_waits: Annotated[Count, OPTIONAL] = 0
    first: Annotated[FirstSteps, OPTIONAL] = NO_FIRST_STEPS
    provenance: Annotated[Processes, OPTIONAL] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cells", MappingProxyType(dict(self.cells)))
        object.__setattr__(self, "modules", MappingProxyType(dict(self.modules)))

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (getattr(self, part.name) for part in fields(self))
        plain = (dict(p) if isinstance(p, MappingProxyType) else p for p in parts)
        return Profile, tuple(plain)

    def broken_promise(self) -> str:
        """What is wrong with the values taken together, "" if nothing."""
        if self.device_waits > self.device_asked:
            return f"has {self.device_waits} device_waits of {self.device_asked} asked"
        return broken_promise(self.cells, self.modules, self.wall_ns) or more_than_all(
            self.first, self.cells, self.steps
        )

    @property
    def is_empty(self) -> bool:
        """Whether no module and no function was called."""
        return not any(self.modules[path[-1]].kind in _CALLED for path, _ in self.cells)

    @property
    def has_functions(self) -> bool:
        """Whether functions were called while they were recorded."""
        return has_functions(self.modules)

    @property
    def attributed_ns(self) -> int:
        """Nanoseconds that are booked on modules, functions and optimizers."""
        return sum(
            totals.self_ns
            for (path, _), totals in self.cells.items()
            if self.modules[path[-1]].kind in (*_CALLED, "optimizer")
        )

    def phase_times_ns(self) -> Counter[Phase]:
        """Own times by phase, in nanoseconds, those of functions included."""
        times: Counter[Phase] = Counter()
        cells, _ = without_functions(self.cells, self.modules)
        for (_, phase), totals in cells.items():
            times[phase] += totals.self_ns
        return times

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
        from torchprof_hooks.profiles.rows import group_rows

        return group_rows(self.cells, self.modules, by)

    def tree(self, *, functions: bool = False) -> Node:
        """The calls as a tree. The top `Node` is the whole run, its children are the
        calls from outside of all modules, and so on inwards. Modules come first, in the
        order of their first calls, then the other rows, the most expensive first.

        Args:
            functions: whether functions are nodes too, or parts of their modules.

        Raises:
            TypeError: `functions` is not True or False.
        """
        from torchprof_hooks.profiles.tree import build_tree

        check_flag("functions", functions)
        return build_tree(self.cells, self.modules, functions)

    def merge(self, other: Profile) -> Profile:
        """Both runs as one profile. The order does not matter.

        Raises:
            TypeError: `other` is not a profile.
        """
        if not isinstance(other, Profile):
            raise TypeError(f"other must be a Profile, not {other!r}")
        return _merged(self, other)

    def save(self, path: str | Path) -> None:
        """Write the profile to a JSON file (see `profile_file`).

        An existing file keeps its mode, and is replaced only when all of the new one is
        written. Links are followed; devices and pipes are written to.

        Raises:
            OSError: the file cannot be written.
        """
        from torchprof_hooks.profiles.files import profile_file

        profile_file.save(self, check_path("path", path))

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Read a profile that `save` wrote.

        Raises:
            ProfileFileError: the file is not a profile, is damaged, or has a version
                that this release does not know.
            OSError: the file cannot be read.
        """
        from torchprof_hooks.profiles.files import profile_file

        return profile_file.load(cls, check_path("path", path))

    def _reported_profile(self) -> Profile:
        return self


def _merged(one: Profile, other: Profile) -> Profile:
    counts = [each.name for each in fields(one) if type(getattr(one, each.name)) is int]
    sums = {name: getattr(one, name) + getattr(other, name) for name in counts}
    return Profile(
        cells=all_cells(one.cells, other.cells),
        modules=all_modules(one.modules, other.modules),
        devices=tuple(sorted({*one.devices, *other.devices})),
        memory=merge_summaries(one.memory, other.memory),
        not_measured=tuple(sorted({*one.not_measured, *other.not_measured})),
        step_times=one.step_times.merge(other.step_times),
        core=united(one.core, other.core, ", "),
        core_reason=united(one.core_reason, other.core_reason, "; "),
        collectives=sum_of((*one.collectives, *other.collectives)),
        peak=higher(one.peak, other.peak),
        first=one.first.merge(other.first),
        provenance=all_of(one.provenance, other.provenance),
        **sums,
    )
