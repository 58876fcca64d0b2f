"""A profile in what other libraries make: charts by matplotlib, and data frames."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, get_args

from torchprof_hooks.profiles.names import MODULE_PHASES, Grouping, Library, PlotKind
from torchprof_hooks.profiles.options import check_choice
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.reports.export.rows import flat_fields, flat_records
from torchprof_hooks.reports.program.part import PHASE_TITLES, shown_times_ns
from torchprof_hooks.reports.time_tree import without_numbers

#: The most bars in a chart.
_MOST: Final = 15


def plot(profile: Profile, kind: PlotKind, ax: Any) -> Any:
    """See `Profile.plot`."""
    check_choice("kind", kind, get_args(PlotKind))
    draw = _CHARTS[kind]
    if profile.is_empty:
        raise ValueError("no module was called: there is nothing to draw")
    if kind == "memory" and not (profile.memory and profile.memory.source):
        raise ValueError("memory was not measured: profile(memory=True) does")
    if ax is None:
        ax = _new_axes()
    draw(profile, ax)
    return ax


def _new_axes() -> Any:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plot needs matplotlib: pip install matplotlib") from error
    return pyplot.subplots(layout="constrained")[1]


def _draw_modules(profile: Profile, ax: Any) -> None:
    """Bars of own time, divided by phase."""
    kinds = _by_kind(profile, lambda row: row.self_ns)
    ends = [0.0] * len(kinds)  # of the bars so far
    for phase in MODULE_PHASES:
        own = [
            sum(row.phases[phase].self_ns for row in rows) / 1e6
            for rows in kinds.values()
        ]
        if any(own):
            ax.barh(list(kinds), own, left=ends, label=phase)
            ends = [end + more for end, more in zip(ends, own, strict=True)]
    ax.legend()
    _finish(ax, "own time (ms)", "Most expensive modules")


def _draw_phases(profile: Profile, ax: Any) -> None:
    times = shown_times_ns(profile)
    found = {PHASE_TITLES[phase]: phase_ns for phase, phase_ns in times.items()}
    ax.barh(list(found), [phase_ns / 1e6 for phase_ns in found.values()])
    _finish(ax, "time (ms)", "Phases")


def _draw_memory(profile: Profile, ax: Any) -> None:
    kinds = _by_kind(profile, _retained_bytes)
    sizes = [sum(map(_retained_bytes, rows)) / 2**20 for rows in kinds.values()]
    ax.barh(list(kinds), sizes)
    _finish(ax, "retained when forward returns, per call (MB)", "Memory")


def _retained_bytes(row: Row) -> float:
    """Bytes that a call retains, without inner calls."""
    forward = row.phases["forward"]
    return forward.memory.retained_bytes / max(forward.calls, 1)


def _by_kind(
    profile: Profile, value: Callable[[Row], float]
) -> Mapping[str, Sequence[Row]]:
    """The kinds of layers with the largest values, the largest last: the first bar is
    at the bottom."""
    kinds: defaultdict[str, list[Row]] = defaultdict(list)
    for row in profile.rows():
        if row.kind == "module":
            kinds[without_numbers(row.name)].append(row)

    def together(name: str) -> float:
        return sum(map(value, kinds[name]))

    ranked = sorted(kinds, key=together)[-_MOST:]
    return {name: kinds[name] for name in ranked}


def _finish(ax: Any, label: str, title: str) -> None:
    ax.set_xlabel(label)
    ax.set_title(title)


_CHARTS: Final[Mapping[PlotKind, Callable[[Profile, Any], None]]] = {
    "modules": _draw_modules,
    "phases": _draw_phases,
    "memory": _draw_memory,
}


def dataframe(profile: Profile, by: Grouping, library: Library | None) -> Any:
    """See `Profile.to_dataframe`."""
    if library is not None:
        check_choice("library", library, get_args(Library))
    columns: dict[str, list[Any]] = {field: [] for field in flat_fields(profile)}
    for record in flat_records(profile, by):
        for field, value in record.items():
            columns[field].append(value)
    return _library(library).DataFrame(columns)


def _library(wanted: Library | None) -> Any:
    """One of two libraries; both can make a data frame of lists by name."""
    names = get_args(Library) if wanted is None else (wanted,)
    for name in names:
        if find_spec(name) is not None:
            return import_module(name)
    raise ImportError(
        f"to_dataframe needs {' or '.join(names)}: pip install {names[0]}"
    )
