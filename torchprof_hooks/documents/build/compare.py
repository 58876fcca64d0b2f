"""The document of a comparison: what became slower, first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from math import isinf
from typing import Final

from torchprof_hooks.documents.document import (
    Answer,
    Answers,
    Block,
    Column,
    Document,
    Facts,
    Table,
    Tone,
    Value,
)
from torchprof_hooks.documents.render.units import best_time
from torchprof_hooks.documents.words import plural
from torchprof_hooks.profiles.compare import RISK, Change, Comparison, RowPhase
from torchprof_hooks.profiles.data import ProfileData

#: Rows, and names of what was not compared, unless more are asked for.
ROWS: Final = 40
#: A row that changed by this share of its old mean changed strongly.
_STRONGLY: Final = 0.5


def comparison_document(
    comparison: Comparison, *, max_rows: int | None = None
) -> Document:
    """All rows that are slower, the largest difference first; then those that are
    faster, and the others.

    max_rows: of the table as text, but for rows that are slower, which are all there;
        40 by default.
    """
    most = max_rows or ROWS
    blocks: list[Block] = [Answers([_verdict(comparison)])]
    changes = _ranked(comparison.changes)
    if changes:
        blocks.append(_table(comparison, changes, most))
    lines = [*_only_in_one(comparison, most), *_notes(comparison)]
    blocks.append(Facts("compared", "", lines, is_faint=True))
    return Document(
        "comparison",
        "comparison",
        [f"{_steps(comparison.old)} before, {_steps(comparison.new)} now"],
        blocks,
        {
            "by": comparison.by,
            "threshold": comparison.threshold,
            "compared": len(changes),
            "slower": len(comparison.slower),
            "faster": len(comparison.faster),
            "gone": [[*key] for key in comparison.gone],
            "added": [[*key] for key in comparison.added],
        },
    )


def _verdict(comparison: Comparison) -> Answer:
    compared, slower = len(comparison.changes), comparison.slower
    of = plural(compared, "row")
    evidence, numbers = "", dict[str, Value]()
    if not compared:
        text = "nothing to compare: no row was called in both profiles"
    elif not slower:
        text = f"none of {of}"
    else:
        text = f"{len(slower)} of {of}"
        worst = max(slower, key=lambda change: change.difference_ns)
        more = best_time(worst.difference_ns)
        evidence = f"most of all {worst.name}, {worst.phase}, by {more} a call"
        numbers = {
            "row": worst.name,
            "phase": worst.phase,
            "difference_ns": worst.difference_ns,
            "noise_ns": _known(worst.noise_ns),
        }
    return Answer("slower", "Slower", text, evidence=evidence, numbers=numbers)


def _ranked(changes: Sequence[Change]) -> list[Change]:
    """Slower ones, faster ones, each with the largest difference first; and others in
    their order."""
    order = {"slower": 0, "faster": 1, "": 2}
    return sorted(
        changes,
        key=lambda c: (order[c.verdict], -abs(c.difference_ns) if c.verdict else 0),
    )


def _table(comparison: Comparison, changes: Sequence[Change], most: int) -> Table:
    noise = [_known(change.noise_ns) for change in changes]
    shares = [
        c.difference_ns / c.old.mean_ns if c.old.mean_ns else None for c in changes
    ]
    counts = [_counts(change) for change in changes]
    columns = [
        Column("phase", "text", [change.phase for change in changes]),
        _times("old", [change.old.mean_ns for change in changes], "old_ns", 3),
        _times("new", [change.new.mean_ns for change in changes], "new_ns"),
        _times("change", [c.difference_ns for c in changes], "difference_ns"),
        Column("%", "share", shares, "share", shows_zeros=True),
        Column("noise", "ns", noise, "noise_ns", 2, shows_zeros=True),
        Column("calls", "text", counts, "calls", leaves=1),
        Column("", "text", [change.verdict for change in changes], "verdict"),
        *(
            Column(f"{which} calls", "count", found, f"{which}_calls", is_detail=True)
            for which, found in (
                ("old", [change.old.calls for change in changes]),
                ("new", [change.new.calls for change in changes]),
            )
        ),
    ]
    return Table(
        "rows",
        "",
        comparison.by,
        [change.name for change in changes],
        columns,
        most=max(most, len(comparison.slower)),
        tones=[_tone(change) for change in changes],
        left_out="{count} more rows, not slower",
        notes=[_legend(comparison)],
    )


def _times(title: str, values: Sequence[Value], name: str, leaves: int = 0) -> Column:
    return Column(title, "ns", values, name, leaves, shows_zeros=True)


def _known(noise_ns: float) -> Value:
    """None where nothing is known of the spread: there was a single call."""
    return None if isinf(noise_ns) else noise_ns


def _tone(change: Change) -> Tone:
    if not change.matters:
        return "same"
    is_strong = abs(change.difference_ns) > _STRONGLY * change.old.mean_ns
    if change.is_slower:
        return "slower2" if is_strong else "slower1"
    return "faster2" if is_strong else "faster1"


def _counts(change: Change) -> str:
    """How often it was called: ``10``, or ``10, 12`` if that changed."""
    old, new = change.old.calls, change.new.calls
    return str(old) if old == new else f"{old}, {new}"


def _legend(comparison: Comparison) -> str:
    return (
        "old, new: mean time of a call, with inner calls, without the slowest; noise: "
        f"what chance explains, at a risk of about {100 * RISK:g} % for all rows "
        "together, not known of a single call; slower, faster: by more than noise and "
        f"by more than {100 * comparison.threshold:g} %"
    )


def _notes(comparison: Comparison) -> Iterator[str]:
    old, new = comparison.old, comparison.new
    if old.devices or new.devices:
        yield "times are those of the host: of device times, no spread is known"
    if old.has_functions != new.has_functions:
        which = "old" if old.has_functions else "new"
        yield (
            f"only in the {which} profile were functions measured; "
            "what that costs is in its times"
        )


def _steps(profile: ProfileData) -> str:
    if not profile.steps:
        return f"{best_time(profile.wall_ns)} without steps"
    times = profile.step_times
    step_ns = times.mean_ns if times.later_steps else profile.wall_ns / profile.steps
    return f"{plural(profile.steps, 'step')} of {best_time(step_ns)}"


def _only_in_one(comparison: Comparison, max_names: int) -> Iterator[str]:
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
