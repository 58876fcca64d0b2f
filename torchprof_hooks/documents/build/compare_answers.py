"""What became slower or faster, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

from torchprof_hooks.documents.document import Answer, Value
from torchprof_hooks.documents.render.units import best_time
from torchprof_hooks.documents.words import percent, plural
from torchprof_hooks.profiles.compare import ENOUGH_RUNS, Change, ComparisonData
from torchprof_hooks.profiles.kinds import without_numbers
from torchprof_hooks.profiles.names import BACKWARD_NAME
from torchprof_hooks.profiles.run_times import STEP

_MORE_RUNS: Final = (
    f"compare --run without -n makes {ENOUGH_RUNS} runs of each, in turns; or give two "
    "folders with a profile of each run."
)


def ranked(comparison: ComparisonData, changes: Sequence[Change]) -> list[Change]:
    """The step, slower rows, faster rows (each by effect on a step, largest first),
    then unchanged rows."""
    order = {"slower": 1, "faster": 2, "": 3}

    def rank(change: Change) -> tuple[int, float]:
        if change.name == STEP:
            return 0, 0.0
        in_step_ns = comparison.in_step_ns(change) if change.verdict else 0.0
        return order[change.verdict], -abs(in_step_ns)

    return sorted(changes, key=rank)


def warnings_of(comparison: ComparisonData) -> Iterator[str]:
    """What readers must know before the answers."""
    if comparison.runs == 1:
        yield f"One run on a side: what follows may be chance. {_MORE_RUNS}"
    elif comparison.is_guess:
        yield f"Two runs on a side: what follows may be chance. {_MORE_RUNS}"
    if comparison.machine.cause == "unknown" and not comparison.in_turns:
        compiled = any(change.is_mean for change in comparison.changes)
        alike = " that are compiled on both sides or on none" * compiled
        yield (
            f"There are too few modules{alike} to tell the machine's speed from a "
            "change: what is slower may be the machine. Runs in turns (compare --run) "
            "tell."
        )


def answers_of(comparison: ComparisonData) -> Iterator[Answer]:
    """The first lines."""
    if not comparison.changes:
        text = "nothing to compare: no row was called in all runs"
        yield Answer("slower", "Slower", text)
        return
    yield from _step(comparison)
    yield _answer(comparison, "slower")
    yield _answer(comparison, "faster")
    yield _machine(comparison)


def _step(comparison: ComparisonData) -> Iterator[Answer]:
    """Whether a whole step became slower, which is what people ask first."""
    for change in comparison.changes:
        if change.name == STEP:
            found = [each for each in _rows(comparison) if each.verdict]
            rows_ns = _sum_ns(comparison, found)
            rows = f"; rows that changed: {_signed(rows_ns / change.old_ns)}"
            rows *= bool(rows_ns) and not comparison.has_evaluations
            evidence = (
                f"{best_time(change.old_ns)} before, {best_time(change.new_ns)} now, "
                f"{_signed(change.relative_change)}"
            )
            if change.verdict:
                answer = "perhaps " * comparison.is_guess + change.verdict
            else:
                is_little = abs(change.relative_change) <= comparison.threshold
                answer = "no difference found" if is_little else "cannot tell"
                evidence += f", {_why_not(comparison, change)}{rows}"
            numbers = _numbers(change)
            yield Answer("step", "A step", answer, evidence=evidence, numbers=numbers)


def _why_not(comparison: ComparisonData, change: Change) -> str:
    if abs(change.relative_change) <= comparison.threshold:
        return f"less than {percent(comparison.threshold)}"
    differ = f"runs of a side differ by up to {percent(change.spread)}"
    if comparison.runs < ENOUGH_RUNS:
        return f"{differ}, and {ENOUGH_RUNS} of each would tell more"
    return f"{differ}, and old and new ones overlap"


def _rows(comparison: ComparisonData) -> list[Change]:
    """What people need, but for the whole step."""
    return [change for change in comparison.printed if change.name != STEP]


def _sum_ns(comparison: ComparisonData, found: Sequence[Change]) -> float:
    """What the changes make of a step in all; 0 where that cannot be added up."""
    if not comparison.steps or comparison.by != "module":
        return 0.0
    outermost = _outermost(comparison, found)
    return sum(map(comparison.in_step_ns, outermost))


def _machine(comparison: ComparisonData) -> Answer:
    """What most rows have in common."""
    change, cause = comparison.machine
    if cause == "unknown":
        text = "too few modules tell its speed, which is not taken out"
    elif cause == "program":
        text = f"does not explain it: in each pair, the program took {_signed(change)}"
    else:
        text = f"{_signed(change)}, taken out of the times now"
    evidence = ""
    if cause == "machine" and not comparison.in_turns:
        evidence = "whether the program is slower as a whole, runs in turns would tell"
    numbers: dict[str, Value] = {"change": change, "cause": cause}
    return Answer("machine", "The machine", text, evidence=evidence, numbers=numbers)


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _answer(comparison: ComparisonData, name: Literal["slower", "faster"]) -> Answer:
    """How many rows became slower (or faster), the largest of these changes, and why
    that is one."""
    rows = _rows(comparison)
    of = plural(len(rows), "row")
    found = [change for change in rows if change.verdict == name]
    if not found:
        return Answer(name, name.title(), f"none of {of}")
    most = _innermost(comparison, ranked(comparison, found))
    where = f"{most.name}, {most.phase}" if most.phase else most.name
    unit = "call"
    if comparison.steps:
        unit = "step" + " with evaluation" * comparison.has_evaluations
    in_all_ns = _sum_ns(comparison, found)
    sign = "-" if in_all_ns < 0 else "+"
    in_all = f", {sign}{best_time(abs(in_all_ns))} a {unit}" if in_all_ns else ""
    of_what = "step" if in_all else unit  # said once
    by = f"by {best_time(abs(comparison.in_step_ns(most)))} a {of_what}"
    perhaps = "perhaps " if comparison.is_guess else ""
    return Answer(
        name,
        name.title(),
        f"{perhaps}{len(found)} of {of}{in_all}",
        evidence=f"most of all {where}, {by} ({percent(abs(most.relative_change))})"
        + _why(comparison, name),
        numbers={
            "rows": len(found),
            "row": most.name,
            "phase": most.phase,
            **_numbers(most),
        },
        next_step=_next_step(comparison),
    )


def _why(comparison: ComparisonData, name: str) -> str:
    """Why a row is slower: how its runs are in order."""
    olds, news = len(comparison.olds), len(comparison.news)
    if min(olds, news) < 2:
        return ""
    longer = "longer" if name == "slower" else "less"
    return (
        f": all {news} new runs took {longer} than all {olds} old ones, by chance 1 in "
        f"{round(1 / comparison.chance)}"
    )


def _numbers(change: Change) -> dict[str, Value]:
    return {
        "old_ns": change.old_ns,
        "new_ns": change.new_ns,
        "change_ns": change.difference_ns,
        "relative_change": change.relative_change,
        "spread": change.spread,
    }


def _outermost(comparison: ComparisonData, found: Sequence[Change]) -> list[Change]:
    """The rows that are not inside of others."""
    paths = [(_path(comparison, change), change) for change in found]
    rows = {(path, change.phase) for path, change in paths}
    return [
        change
        for path, change in paths
        if rows.isdisjoint((around, change.phase) for around in _around(path))
    ]


def _innermost(comparison: ComparisonData, found: Sequence[Change]) -> Change:
    """The first row, with the largest change; or a row inside of it with half of it."""
    most = found[0]
    for change in found[1:]:
        around = _around(_path(comparison, change))
        is_inside = change.phase == most.phase and _path(comparison, most) in around
        if is_inside and 2 * _total_ns(change) >= _total_ns(most):
            most = change
    return most


def _around(path: str) -> set[str]:
    """The paths of what a row may be inside of."""
    ends = [place for place, sign in enumerate(path) if sign == "."]
    return {BACKWARD_NAME, *(path[:end] for end in ends)} - {path}


def _path(comparison: ComparisonData, change: Change) -> str:
    """``Net.blocks.*.norm`` of a module, or of the row of several."""
    is_kind = change.name in comparison.layers.values()
    name = change.name.partition(": ")[0] if is_kind else change.name
    return without_numbers(name)


def _total_ns(change: Change) -> float:
    return abs(change.difference_ns) * change.new_calls


def _next_step(comparison: ComparisonData) -> str:
    """What finds which functions changed; "" if the comparison does."""
    if comparison.by in ("function", "call"):
        return ""
    if comparison.old.has_functions and comparison.new.has_functions:
        return "compare --by function"
    return "compare --run --by function"
