"""The table of a comparison of two profiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from math import isinf
from typing import Final

from torchprof_hooks.profiles.compare import RISK, Change, Comparison, RowPhase
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.reports.table import (
    Table,
    TextColumn,
    format_table,
    plural,
    wrap,
)
from torchprof_hooks.reports.units import best_time, choose_unit, format_time

#: Columns that are left out where the table is narrow, in this order.
_DISPENSABLE: Final = (("calls",), ("noise",), ("old",))


def render(comparison: Comparison, *, width: int = 120, max_rows: int = 40) -> str:
    """All rows that are slower, the largest difference first; then those that are
    faster, and as many of the others as there is room for.

    Example::

        10 steps of 200.00ms before, 10 steps of 231.00ms now
        old, new: mean time of a call, with inner calls, without the slowest; ...

        module      phase        old      new   change      %   noise  calls
        -----------------------------------------------------------------------------
        Net       forward     5.17ms   8.19ms  +3.02ms  +58.4  0.11ms     10  slower
        Net.fc    forward     5.00ms   8.01ms  +3.01ms  +60.2  0.10ms     10  slower
        Net.head  forward    75.00us  75.10us  +0.10us   +0.1  2.30us     10
        ... 3 more rows, not slower
        only now: Net.extra (forward, backward)

        2 of 6 rows are slower
    """
    parts = ["\n".join(wrap(line, width) for line in heading(comparison))]
    shown = shown_changes(comparison, max_rows)
    if shown:
        table = change_table(comparison.by, shown)
        parts.append(format_table(*table, width, _DISPENSABLE))
    hidden = len(comparison.changes) - len(shown)
    notes = [*_rest(hidden), *only_in_one(comparison, max_rows)]
    parts[-1] += "".join(f"\n{wrap(note, width)}" for note in notes)
    return "\n\n".join([*parts, _verdict(comparison)])


def heading(comparison: Comparison) -> Iterator[str]:
    """How much was measured, and what the numbers mean."""
    old, new = comparison.old, comparison.new
    yield f"{_steps(old)} before, {_steps(new)} now"
    if comparison.changes:
        yield (
            "old, new: mean time of a call, with inner calls, without the slowest; "
            f"noise: what chance explains, at a risk of about {100 * RISK:g} % for all "
            "rows together; slower, faster: by more than noise and by more than "
            f"{100 * comparison.threshold:g} %"
        )
    if old.devices or new.devices:
        yield "times are those of the host: of device times, no spread is known"
    if old.has_functions != new.has_functions:
        which = "old" if old.has_functions else "new"
        yield (
            f"only in the {which} profile were functions measured; "
            "what that costs is in its times"
        )


def _steps(profile: Profile) -> str:
    if not profile.steps:
        return f"{best_time(profile.wall_ns)} without steps"
    times = profile.step_times
    step_ns = times.mean_ns if times.later_steps else profile.wall_ns / profile.steps
    return f"{plural(profile.steps, 'step')} of {best_time(step_ns)}"


def shown_changes(comparison: Comparison, max_rows: int) -> list[Change]:
    """Rows that are slower in any case; others up to `max_rows`, in their order."""

    def by_difference(change: Change) -> float:
        return -abs(change.difference_ns)

    slower = sorted(comparison.slower, key=by_difference)
    faster = sorted(comparison.faster, key=by_difference)
    others = [change for change in comparison.changes if not change.matters]
    room = max(max_rows - len(slower), 0)
    return [*slower, *[*faster, *others][:room]]


def change_table(by: str, changes: Sequence[Change]) -> Table:
    """A line for each row and phase."""
    labels = [by, *(change.name for change in changes)]
    texts = [change_texts(change) for change in changes]
    headers = ("phase", "old", "new", "change", "%", "noise", "calls", "")
    columns = [
        TextColumn(header, [line[i] for line in texts], header in ("phase", ""))
        for i, header in enumerate(headers)
    ]
    return Table(labels, columns)


def change_texts(change: Change) -> tuple[str, ...]:
    """Times of one row have one unit: they are to be compared."""
    old_ns, new_ns = change.old.mean_ns, change.new.mean_ns
    unit = choose_unit(max(old_ns, new_ns))
    sign = "+" if change.difference_ns > 0 else ""
    return (
        change.phase,
        format_time(old_ns, unit),
        format_time(new_ns, unit),
        sign + format_time(change.difference_ns, unit),
        f"{100 * change.difference_ns / old_ns:+.1f}" if old_ns else "",
        "unknown" if isinf(change.noise_ns) else format_time(change.noise_ns, unit),
        counts(change),
        change.verdict,
    )


def counts(change: Change) -> str:
    """How often it was called: ``10``, or ``10, 12`` if that changed."""
    old, new = change.old.calls, change.new.calls
    return str(old) if old == new else f"{old}, {new}"


def _rest(hidden: int) -> Iterator[str]:
    if hidden:
        yield f"... {plural(hidden, 'more row')}, not slower"


def only_in_one(comparison: Comparison, max_names: int) -> Iterator[str]:
    """Lines for what was not compared."""
    for title, keys in (
        ("only before", comparison.gone),
        ("only now", comparison.added),
    ):
        names = _with_phases(keys)
        rest = [f"... {len(names) - max_names} more"] * (len(names) > max_names)
        if names:
            yield f"{title}: {', '.join(chain(names[:max_names], rest))}"


def _with_phases(keys: Sequence[RowPhase]) -> list[str]:
    """``Net.fc (forward, backward)``."""
    phases: dict[str, list[str]] = {}
    for name, phase in keys:
        phases.setdefault(name, []).append(phase)
    return [f"{name} ({', '.join(all_of)})" for name, all_of in phases.items()]


def _verdict(comparison: Comparison) -> str:
    compared, slower = len(comparison.changes), len(comparison.slower)
    if not compared:
        return "nothing to compare: no row was called in both profiles"
    if not slower:
        return f"none of {plural(compared, 'row')} is slower"
    return (
        f"{slower} of {plural(compared, 'row')} {'is' if slower == 1 else 'are'} slower"
    )
