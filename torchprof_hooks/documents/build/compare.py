"""The document of a comparison, which begins with what became slower."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from torchprof_hooks.documents.build.compare_answers import (
    answers_of,
    ranked,
    warnings_of,
)
from torchprof_hooks.documents.build.facts import measuring, notes_of, title_of
from torchprof_hooks.documents.build.tables import placed_nodes, tree_of
from torchprof_hooks.documents.build.view import view_of
from torchprof_hooks.documents.document import (
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
from torchprof_hooks.profiles.compare import ENOUGH_RUNS, Change, ComparisonData
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import FUSED_CLASS
from torchprof_hooks.profiles.run_times import RowPhase

#: The most rows, and names of rows that were not compared, by default.
ROWS: Final = 40
#: A row changed strongly if it changed by more than this share of its old time.
_STRONGLY: Final = 0.25
#: The legend of the tones of the tree.
_TREE_LEGEND: Final = (
    "Frames are as wide as the time that they take now. Red became slower, blue "
    f"faster, the strong colours by more than {100 * _STRONGLY:g} %; grey may be "
    "chance. What was not there before is dashed."
)


def comparison_document(
    comparison: ComparisonData, *, max_rows: int | None = None, is_text: bool = False
) -> Document:
    """The rows that became slower, the largest difference first; then those that became
    faster; then the others. Pages and programs also get what was measured in both, and
    of modules a tree.

    max_rows: the most rows of the table as text; 40 by default. All rows that became
        slower are shown in any case.
    is_text: whether only a text, or Markdown, is made of it: these have no details.
    """
    most = max_rows or ROWS
    old, new = comparison.old, comparison.new
    blocks: list[Block] = [
        Answers([*answers_of(comparison)], [*warnings_of(comparison)])
    ]
    changes = ranked(comparison, comparison.printed)
    if comparison.by == "module" and not new.is_empty and not is_text:
        blocks.append(_tree(comparison))
    if changes:
        blocks.append(_table(comparison, changes, most))
    lines = [*_only_in_one(comparison, most), *_notes(comparison)]
    blocks.append(Facts("compared", "", lines, is_faint=True))
    blocks += [] if is_text else [_measured("before", old), _measured("now", new)]
    return Document(
        "comparison",
        "comparison",
        [_sides(comparison)],
        blocks,
        {
            "by": comparison.by,
            "threshold": comparison.threshold,
            "old_runs": len(comparison.olds),
            "new_runs": len(comparison.news),
            "runs_left_out": comparison.left_out,
            "in_turns": comparison.in_turns,
            "old_step_ns": _step_ns(old),
            "new_step_ns": _step_ns(new),
            "machine_change": comparison.machine.change,
            "machine_cause": comparison.machine.cause,
            "chance": comparison.chance,
            "compared": len(changes),
            "slower": len(comparison.slower),
            "faster": len(comparison.faster),
            "gone": [[*key] for key in comparison.gone],
            "added": [[*key] for key in comparison.added],
        },
    )


def _table(comparison: ComparisonData, changes: Sequence[Change], most: int) -> Table:
    doubt = "?" if comparison.is_guess else ""
    verdicts = [f"{c.verdict}{doubt}" if c.verdict else "" for c in changes]
    spreads = [c.spread if comparison.runs > 1 else None for c in changes]
    columns = [
        Column("phase", "text", [change.phase for change in changes]),
        _times("old", [change.old_ns for change in changes], "old_ns", 4),
        _times("new", [change.new_ns for change in changes], "new_ns", 4),
        _times("change", [c.difference_ns for c in changes], "change_ns", 2),
        _shares("%", [change.relative_change for change in changes], "relative_change"),
        _shares("runs differ %", spreads, "spread", 3),
        Column("calls", "text", [*map(_counts, changes)], "calls", drop_order=1),
        Column("", "text", verdicts, "verdict"),
        _calls("old", [change.old_calls for change in changes]),
        _calls("new", [change.new_calls for change in changes]),
    ]
    if any(change.is_mean for change in changes):
        of = ["step" if change.is_mean else "call" for change in changes]
        columns.append(Column("of a", "text", of, "of", is_detail=True))
    if comparison.steps:
        in_step = [comparison.in_step_ns(change) for change in changes]
        columns.insert(4, _times("in a step", in_step, "step_change_ns"))
    slower = (n for n, c in enumerate(changes, 1) if c.verdict == "slower")
    return Table(
        "rows",
        "Time of a call",
        comparison.by,
        [change.name for change in changes],
        columns,
        most=max([most, *slower]),
        tones=[_tone(change) for change in changes],
        left_out="{count} more rows, not slower",
        notes=[_legend(comparison)],
    )


def _shares(
    title: str, values: Sequence[Value], name: str, drop_order: int = 0
) -> Column:
    return Column(title, "share", values, name, drop_order, shows_zeros=True)


def _times(
    title: str, values: Sequence[Value], name: str, drop_order: int = 0
) -> Column:
    return Column(title, "ns", values, name, drop_order, shows_zeros=True)


def _calls(which: str, values: Sequence[Value]) -> Column:
    name = f"{which}_calls"
    return Column(f"{which} calls", "count", values, name, is_detail=True)


def _tone(change: Change | None) -> Tone:
    if change is None or not change.verdict:
        return "same"
    is_strong = abs(change.relative_change) > _STRONGLY
    if change.verdict == "slower":
        return "slower2" if is_strong else "slower1"
    return "faster2" if is_strong else "faster1"


def _counts(change: Change) -> str:
    """The number of calls: ``10``, or ``10, 12`` if it changed."""
    old, new = change.old_calls, change.new_calls
    return str(old) if old == new else f"{old}, {new}"


def _tree(comparison: ComparisonData) -> Table:
    """The modules of the new profile, each with its largest change that matters."""
    changed = [change for change in comparison.changes if change.verdict]
    changed.sort(key=lambda change: abs(change.difference_ns))
    largest = {change.name: change for change in changed}
    added = {name for name, _ in comparison.added}
    added -= {change.name for change in comparison.changes}
    nodes = placed_nodes(comparison.new.only_measured.tree(), None)
    rows = [node for _, node in nodes]
    changes = [largest.get(row.name) for row in rows]
    columns = [
        Column("total now", "ns", [row.cumulative_ns for row in rows], "cumulative_ns"),
        Column("self now", "ns", [row.self_ns for row in rows], "self_ns"),
        Column("phase", "text", _of(changes, lambda c: c.phase)),
        Column("change", "ns", _of(changes, lambda c: c.difference_ns), "change_ns"),
        Column(
            "%", "share", _of(changes, lambda c: c.relative_change), "relative_change"
        ),
        Column("", "text", _of(changes, lambda c: c.verdict), "verdict"),
    ]
    return replace(
        tree_of("tree", "What changed", nodes, columns),
        tones=[
            "new" if row.name in added else _tone(change)
            for row, change in zip(rows, changes, strict=True)
        ],
        notes=[_TREE_LEGEND],
        drawing="tree",
        is_detail=True,
    )


def _of(
    changes: Sequence[Change | None], value: Callable[[Change], Value]
) -> list[Value]:
    return [value(change) if change else None for change in changes]


def _measured(when: str, profile: ProfileData) -> Facts:
    view = view_of(profile)
    return Facts(
        f"measured_{when}",
        f"What was measured, {when}",
        [title_of(view), *notes_of(view), *measuring(view)],
        {
            "wall_ns": view.profile.wall_ns,
            "steps": view.profile.steps,
            "overhead_ns": profile.overhead_ns,
        },
        is_detail=True,
    )


def _legend(comparison: ComparisonData) -> str:
    is_without = comparison.machine.cause == "machine"
    speed = "; without what the machine was faster or slower" if is_without else ""
    kinds = "; *: the mean of all layers of a kind" if comparison.layers else ""
    means = any(change.is_mean for change in comparison.changes)
    inside = "; in compiled code, of either, the mean of a step" if means else ""
    between = comparison.steps and comparison.has_evaluations
    in_step = "; in a step: with the evaluation calls before it" * bool(between)
    few = (
        " and as far apart as the runs of both sides differ"
        if 1 < comparison.runs < ENOUGH_RUNS
        else ""
    )
    return (
        "old, new: the shortest call of a run, with inner calls, the median of runs"
        f"{inside}{in_step}{speed}{kinds}; slower: each new run took longer than each "
        f"old one, the median by more than {100 * comparison.threshold:g} %{few}"
    )


def _notes(comparison: ComparisonData) -> Iterator[str]:
    old, new = comparison.old, comparison.new
    if old.devices or new.devices:
        yield "times are those of the host: of device times, no shortest call is known"
    if old.has_functions != new.has_functions:
        which = "old" if old.has_functions else "new"
        yield (
            f"only in the {which} profile were functions measured; "
            "what that costs is in its times"
        )


def _sides(comparison: ComparisonData) -> str:
    """``5 runs of 60 steps of 20.1ms before, 5 runs of ... now, in turns``."""
    old, new = (
        f"{plural(len(runs), 'run')} of {_steps(merged, len(runs))}"
        for runs, merged in (
            (comparison.olds, comparison.old),
            (comparison.news, comparison.new),
        )
    )
    left_out = comparison.left_out
    slow = f"; without {plural(left_out, 'run')} when the machine was slower"
    turns = ", in turns" * comparison.in_turns
    return f"{old} before, {new} now{turns}{slow * bool(left_out)}"


def _steps(profile: ProfileData, runs: int) -> str:
    measured = profile.only_measured
    if not measured.steps:
        return f"{best_time(measured.wall_ns / runs)} without steps"
    return plural(round(measured.steps / runs), "step")


def _step_ns(profile: ProfileData) -> float | None:
    """The mean duration of a step; None without steps."""
    measured = profile.only_measured
    if not measured.steps:
        return None
    times = measured.step_times
    return times.mean_ns if times.later_steps else measured.wall_ns / measured.steps


def _only_in_one(comparison: ComparisonData, max_names: int) -> Iterator[str]:
    for title, keys, merged in (
        ("only before", comparison.gone, comparison.old),
        ("only now", comparison.added, comparison.new),
    ):
        kernels = {n for n, i in merged.modules.items() if i.class_name == FUSED_CLASS}
        fused = kernels & {name for name, _ in keys}
        alone = [key for key in keys if key[0] not in {*comparison.layers, *fused}]
        names = _with_phases([key for key in alone if FUSED_CLASS not in key[0]])
        names += [plural(len(fused), FUSED_CLASS)] * bool(fused)
        rest = [f"... {len(names) - max_names} more"] * (len(names) > max_names)
        if names:
            yield f"{title}: {', '.join(chain(names[:max_names], rest))}"


def _with_phases(keys: Sequence[RowPhase]) -> list[str]:
    """``Net.fc (forward, backward)``."""
    phases: dict[str, list[str]] = {}
    for name, phase in keys:
        phases.setdefault(name, []).append(phase)
    return [
        f"{name} ({', '.join(all_of)})" if any(all_of) else name
        for name, all_of in phases.items()
    ]
