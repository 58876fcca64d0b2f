"""The document of a comparison, which begins with what became slower."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import isinf
from typing import Final

from torchprof_hooks.documents.build.facts import measuring, notes_of, title_of
from torchprof_hooks.documents.build.tables import placed_nodes, tree_of
from torchprof_hooks.documents.build.view import view_of
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
from torchprof_hooks.documents.words import percent, plural
from torchprof_hooks.profiles.compare import (
    RISK,
    Change,
    Comparison,
    RowPhase,
    compare,
)
from torchprof_hooks.profiles.data import ProfileData

#: The most rows, and names of rows that were not compared, by default.
ROWS: Final = 40
#: A row changed strongly if it changed by more than this share of its old mean.
_STRONGLY: Final = 0.25
#: The legend of the tones of the tree.
_TREE_LEGEND: Final = (
    "Frames are as wide as the time that they take now. Red became slower, blue "
    f"faster, the strong colours by more than {100 * _STRONGLY:g} %; grey may be "
    "noise. What was not there before is dashed."
)


def comparison_document(
    comparison: Comparison, *, max_rows: int | None = None
) -> Document:
    """The rows that became slower, the largest difference first; then those that became
    faster; then the others. Pages and programs also get the modules of the new profile
    as a tree, and what was measured in both.

    max_rows: the most rows of the table as text; 40 by default. All rows that became
        slower are shown in any case.
    """
    most = max_rows or ROWS
    old, new = comparison.old, comparison.new
    blocks: list[Block] = [Answers(_answers(comparison))]
    changes = _ranked(comparison.changes)
    if not new.is_empty:
        blocks.append(_tree(comparison))
    if changes:
        blocks.append(_table(comparison, changes, most))
    lines = [*_only_in_one(comparison, most), *_notes(comparison)]
    blocks.append(Facts("compared", "", lines, is_faint=True))
    blocks += [_measured("before", old), _measured("now", new)]
    return Document(
        "comparison",
        "comparison",
        [f"{_steps(old)} before, {_steps(new)} now"],
        blocks,
        {
            "by": comparison.by,
            "threshold": comparison.threshold,
            "old_step_ns": _step_ns(old),
            "new_step_ns": _step_ns(new),
            "compared": len(changes),
            "slower": len(comparison.slower),
            "faster": len(comparison.faster),
            "gone": [[*key] for key in comparison.gone],
            "added": [[*key] for key in comparison.added],
        },
    )


def _answers(comparison: Comparison) -> list[Answer]:
    if not comparison.changes:
        text = "nothing to compare: no row was called in both profiles"
        return [Answer("slower", "Slower", text)]
    return [
        _answer(comparison, "slower", comparison.slower),
        _answer(comparison, "faster", comparison.faster),
    ]


def _answer(comparison: Comparison, name: str, found: Sequence[Change]) -> Answer:
    """How many rows became slower (or faster), and the largest of these changes."""
    of = plural(len(comparison.changes), "row")
    if not found:
        return Answer(name, name.title(), f"none of {of}")
    most = _ranked(found)[0]
    by = best_time(abs(most.difference_ns))
    share = _share(most)
    by += f" ({percent(abs(share))})" if share is not None else ""
    return Answer(
        name,
        name.title(),
        f"{len(found)} of {of}",
        evidence=f"most of all {most.name}, {most.phase}, by {by} a call",
        numbers={
            "rows": len(found),
            "row": most.name,
            "phase": most.phase,
            "old_ns": most.old.mean_ns,
            "new_ns": most.new.mean_ns,
            "change_ns": most.difference_ns,
            "relative_change": share,
            "noise_ns": _known(most.noise_ns),
        },
        next_step=_next_step(comparison),
    )


def _next_step(comparison: Comparison) -> str:
    """What tells which functions changed; "" if the comparison does."""
    if comparison.by in ("function", "call"):
        return ""
    if comparison.old.has_functions and comparison.new.has_functions:
        return "compare --by call"
    return "profile(functions=True) of both, and compare --by call"


def _ranked(changes: Sequence[Change]) -> list[Change]:
    """Slower rows, then faster ones, each with the largest difference first; then the
    others in their present order."""
    order = {"slower": 0, "faster": 1, "": 2}
    return sorted(
        changes,
        key=lambda c: (order[c.verdict], -abs(c.difference_ns) if c.verdict else 0),
    )


def _table(comparison: Comparison, changes: Sequence[Change], most: int) -> Table:
    noise = [_known(change.noise_ns) for change in changes]
    shares = [_share(change) for change in changes]
    counts = [_counts(change) for change in changes]
    columns = [
        Column("phase", "text", [change.phase for change in changes]),
        _times("old", [change.old.mean_ns for change in changes], "old_ns", 3),
        _times("new", [change.new.mean_ns for change in changes], "new_ns"),
        _times("change", [c.difference_ns for c in changes], "change_ns"),
        Column("%", "share", shares, "relative_change", shows_zeros=True),
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
        "Mean time of a call",
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
    """The noise; None if the spread is not known: too few calls were measured."""
    return None if isinf(noise_ns) else noise_ns


def _share(change: Change) -> float | None:
    """The change as a share of the old mean; None if that is 0."""
    old_ns = change.old.mean_ns
    return change.difference_ns / old_ns if old_ns else None


def _tone(change: Change | None) -> Tone:
    if change is None or not change.matters:
        return "same"
    is_strong = abs(change.difference_ns) > _STRONGLY * change.old.mean_ns
    if change.is_slower:
        return "slower2" if is_strong else "slower1"
    return "faster2" if is_strong else "faster1"


def _counts(change: Change) -> str:
    """The number of calls: ``10``, or ``10, 12`` if it changed."""
    old, new = change.old.calls, change.new.calls
    return str(old) if old == new else f"{old}, {new}"


def _tree(comparison: Comparison) -> Table:
    """The modules of the new profile, each with its largest change that matters."""
    found = comparison
    if comparison.by != "module":
        found = compare(comparison.old, comparison.new, "module", comparison.threshold)
    largest: dict[str, Change] = {}
    for change in _ranked(found.changes):
        known = largest.get(change.name)
        if change.matters and (
            known is None or abs(change.difference_ns) > abs(known.difference_ns)
        ):
            largest[change.name] = change
    added = {name for name, _ in found.added} - {c.name for c in found.changes}
    nodes = placed_nodes(found.new.tree(), None)
    rows = [node for _, node in nodes]
    changes = [largest.get(row.name) for row in rows]
    tones = [
        "new" if row.name in added else _tone(change)
        for row, change in zip(rows, changes, strict=True)
    ]
    columns = [
        Column("total now", "ns", [row.cumulative_ns for row in rows], "cumulative_ns"),
        Column("self now", "ns", [row.self_ns for row in rows], "self_ns"),
        Column("phase", "text", _of(changes, lambda c: c.phase)),
        Column("change", "ns", _of(changes, lambda c: c.difference_ns), "change_ns"),
        Column("%", "share", _of(changes, _share), "relative_change"),
        Column("", "text", _of(changes, lambda c: c.verdict), "verdict"),
    ]
    return replace(
        tree_of("tree", "What changed", nodes, columns),
        tones=tones,
        notes=[_TREE_LEGEND],
        drawing="tree",
        is_detail=True,
    )


def _of(
    changes: Sequence[Change | None], value: Callable[[Change], Value]
) -> list[Value]:
    """A number of each change; None where there is no change."""
    return [value(change) if change else None for change in changes]


def _measured(when: str, profile: ProfileData) -> Facts:
    """What was measured in one of the profiles, and how."""
    view = view_of(profile)
    return Facts(
        f"measured_{when}",
        f"What was measured, {when}",
        [title_of(view), *notes_of(view), *measuring(view)],
        {
            "wall_ns": profile.wall_ns,
            "steps": profile.steps,
            "overhead_ns": profile.overhead_ns,
        },
        is_detail=True,
    )


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
    step_ns = _step_ns(profile)
    if step_ns is None:
        return f"{best_time(profile.wall_ns)} without steps"
    return f"{plural(profile.steps, 'step')} of {best_time(step_ns)}"


def _step_ns(profile: ProfileData) -> float | None:
    """The mean duration of a step; None without steps."""
    if not profile.steps:
        return None
    times = profile.step_times
    return times.mean_ns if times.later_steps else profile.wall_ns / profile.steps


def _only_in_one(comparison: Comparison, max_names: int) -> Iterator[str]:
    """Lines about the rows that only one of the profiles has."""
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
