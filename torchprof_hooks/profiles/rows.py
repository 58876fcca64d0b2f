"""Cells of a profile grouped into rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import MODULE_PHASES, Kind, Phase, check_grouping
from torchprof_hooks.profiles.totals import Totals


@dataclass(frozen=True, slots=True)
class Row:
    """Everything that was booked on one module, or on one class of modules.

    name: qualified name of the module, or the class name.
    class_name: class of the module ("" for rows that are not modules).
    kind: "module", "optimizer", "backward" (backward time that no module owns),
        "outside" (the rest of the loop) or "profiler".
    aliases: other names of a shared module.
    compiled: whether torch.compile hides the inside.
    phases: `Totals` for "forward", "backward" and "recompute"; rows that are not
        modules have a phase of their kind as well.
    """

    name: str
    class_name: str
    kind: Kind
    aliases: tuple[str, ...]
    compiled: bool
    phases: Mapping[Phase, Totals]

    @property
    def self_ns(self) -> int:
        """Own time in all phases."""
        return sum(totals.self_ns for totals in self.phases.values())

    @property
    def cumulative_ns(self) -> int:
        """Time with inner calls, in all phases."""
        return sum(totals.cumulative_ns for totals in self.phases.values())

    @property
    def calls(self) -> int:
        """Forward calls of a module; calls of another row."""
        if self.kind == "module":
            return self.phases["forward"].calls
        return sum(totals.calls for totals in self.phases.values())


class PhaseSums:
    """Adds up cells for one row or node."""

    def __init__(self) -> None:
        self._own: dict[Phase, Totals] = {}
        self._cumulative: dict[Phase, tuple[int, int]] = {}

    def add_own(self, phase: Phase, totals: Totals) -> None:
        """A cell of the row itself."""
        self._own[phase] = self._own.get(phase, Totals()) + totals

    def add_inside(self, phase: Phase, totals: Totals) -> None:
        """A cell of the row, or of something called from within the row."""
        host_ns, device_ns = self._cumulative.get(phase, (0, 0))
        self._cumulative[phase] = (
            host_ns + totals.self_ns,
            device_ns + totals.device_self_ns,
        )

    def result(self) -> Mapping[Phase, Totals]:
        """The sums by phase; the three phases of modules are always there."""
        phases = dict.fromkeys((*MODULE_PHASES, *self._own, *self._cumulative))
        return {
            phase: self._own.get(phase, Totals()).with_cumulative(
                *self._cumulative.get(phase, (0, 0))
            )
            for phase in phases
        }


def group_rows(
    cells: Mapping[tuple[tuple[str, ...], Phase], Totals],
    modules: Mapping[str, ModuleInfo],
    by: str,
) -> tuple[Row, ...]:
    """See `Profile.rows`."""
    check_grouping(by)
    infos: dict[str, ModuleInfo] = {}
    sums: dict[str, PhaseSums] = {}
    for (path, phase), totals in cells.items():
        groups = [_group(name, modules[name], by) for name in path]
        for name, group in zip(path, groups, strict=True):
            info = _group_info(modules[name], by)
            infos[group] = infos[group].merge(info) if group in infos else info
        for group in set(groups):  # a set: nested calls of one group count once
            sums.setdefault(group, PhaseSums()).add_inside(phase, totals)
        sums[groups[-1]].add_own(phase, totals)
    rows = (_row(name, infos[name], sums[name]) for name in sums)
    return tuple(sorted(rows, key=expensive_first))


def expensive_first(row: Row) -> tuple[int, str]:
    """Sorting key for rows and nodes."""
    return -row.cumulative_ns, row.name


def _group(name: str, info: ModuleInfo, by: str) -> str:
    return info.class_name if by == "class" and info.kind == "module" else name


def _group_info(info: ModuleInfo, by: str) -> ModuleInfo:
    return info if by == "module" else ModuleInfo(info.class_name, info.kind)


def _row(name: str, info: ModuleInfo, sums: PhaseSums) -> Row:
    return Row(
        name, info.class_name, info.kind, info.aliases, info.compiled, sums.result()
    )
