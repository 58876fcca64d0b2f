"""How much of a step devices idled, and whose host code they waited for, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.trace.device_idle import DeviceIdle, DeviceUse
from torchprof_hooks.reports.table import percent, plural
from torchprof_hooks.reports.time_tree import without_numbers
from torchprof_hooks.reports.units import best_time


def idle_lines(idle: DeviceIdle, max_rows: int) -> Iterator[str]:
    """Lines for each device; one that says why, if there is none.

    max_rows: of one device; what is left has a row of its own.
    """
    if idle.reason:
        yield f"Device: idle time is not known: {idle.reason}"
    elif not idle.devices:
        yield f"Device: no kernels of a device were recorded in step {idle.step}"
    for use in idle.devices:
        text = f"{use.device}: busy {percent(use.busy_ns, idle.step_ns)} of step "
        text += f"{idle.step} ({best_time(idle.step_ns)})"
        if use.idle_ns:
            text += f", idle {best_time(use.idle_ns)} while the host was in:"
        yield text
        yield from _rows(use, idle.step_ns, max_rows)


def _rows(use: DeviceUse, step_ns: int, max_rows: int) -> Iterator[str]:
    """Layers of a kind have one row, as in the tree."""
    times: Counter[tuple[str, Phase]] = Counter()
    for row in use.rows:
        times[without_numbers(row.module), row.phase] += row.idle_ns
    ranked = sorted(times.items(), key=lambda item: (-item[1], item[0]))
    shown = len(ranked) if len(ranked) <= max_rows else max(max_rows - 1, 0)
    rest = ranked[shown:]
    for (module, phase), idle_ns in ranked[:shown]:
        yield _row(idle_ns, step_ns, _place(module, phase))
    if rest:
        rest_ns = sum(idle_ns for _, idle_ns in rest)
        yield _row(rest_ns, step_ns, f"({plural(len(rest), 'other place')})")


def _place(module: str, phase: Phase) -> str:
    """A place with its phase, if the name does not tell that."""
    return module if module.startswith("(") else f"{module}, {phase}"


def _row(idle_ns: int, step_ns: int, place: str) -> str:
    return f"  {best_time(idle_ns):>9}  {percent(idle_ns, step_ns):>6}  {place}"
