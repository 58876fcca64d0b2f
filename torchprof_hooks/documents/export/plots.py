"""Charts of a profile, by matplotlib."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, get_args

from torchprof_hooks.documents.words import PHASE_TITLES, phase_times_ns
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import MODULE_PHASES, PlotKind, without_numbers
from torchprof_hooks.profiles.options import check_choice
from torchprof_hooks.profiles.rows import Row

#: The most bars in a chart.
_MOST: Final = 15


def plot(profile: ProfileData, kind: PlotKind, ax: Any) -> Any:
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


def _draw_modules(profile: ProfileData, ax: Any) -> None:
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


def _draw_phases(profile: ProfileData, ax: Any) -> None:
    times = phase_times_ns(profile)
    found = {PHASE_TITLES[phase]: phase_ns for phase, phase_ns in times.items()}
    ax.barh(list(found), [phase_ns / 1e6 for phase_ns in found.values()])
    _finish(ax, "time (ms)", "Phases")


def _draw_memory(profile: ProfileData, ax: Any) -> None:
    kinds = _by_kind(profile, _retained_bytes)
    sizes = [sum(map(_retained_bytes, rows)) / 2**20 for rows in kinds.values()]
    ax.barh(list(kinds), sizes)
    _finish(ax, "retained when forward returns, per call (MB)", "Memory")


def _retained_bytes(row: Row) -> float:
    """Bytes that a forward call retains, without inner calls."""
    forward = row.phases["forward"]
    return forward.memory.retained_bytes / max(forward.calls, 1)


def _by_kind(
    profile: ProfileData, value: Callable[[Row], float]
) -> Mapping[str, Sequence[Row]]:
    """The kinds of layers with the largest values, the largest last: matplotlib draws
    the first bar at the bottom."""
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


_CHARTS: Final[Mapping[PlotKind, Callable[[ProfileData, Any], None]]] = {
    "modules": _draw_modules,
    "phases": _draw_phases,
    "memory": _draw_memory,
}
