"""What became slower or faster, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

from torchprof_hooks.documents.document import Answer, Value
from torchprof_hooks.documents.render.units import best_time
from torchprof_hooks.documents.words import percent, plural
from torchprof_hooks.profiles.changes import Change, ComparisonData
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.kinds import without_numbers
from torchprof_hooks.profiles.names import BACKWARD_NAME
from torchprof_hooks.profiles.run_times import STEP

_MORE_RUNS: Final = (
    "compare --run starts a few runs of both in turns; or give two folders with a "
    "profile of each run."
)
#: A larger noise is not printed: it is that of too few runs.
_NO_NOISE: Final = 10.0


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
    if comparison.is_guess:
        yield (
            "With one run on a side, it cannot be known whether a change is more than "
            f"chance; what follows is a guess. {_MORE_RUNS}"
        )
    merged = [
        name
        for name, runs in (("old", comparison.olds), ("new", comparison.news))
        if any(_processes(run) > 1 for run in runs)
    ]
    if merged:
        yield (
            f"A profile of {' and of '.join(merged)} is one of several runs merged, "
            "and counts as one: give a folder with a profile of each run instead."
        )
    if comparison.together.cause == "unknown" and not comparison.in_turns:
        yield (
            "There are too few modules to tell the machine's speed from a change: what "
            "is slower may be the machine. Runs in turns (compare --run) tell."
        )


def _processes(run: ProfileData) -> int:
    """How many runs were merged; ranks of one run do not count."""
    return len(
        {each.run or each.started_ns for each in run.provenance if not each.rank}
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
    yield _together(comparison)
    if known_noise(comparison.visible):
        yield Answer(
            "visible",
            "Would be found",
            f"changes from {percent(comparison.visible)}",
            evidence="in rows that take half of the time, 19 times in 20",
            numbers={"visible": comparison.visible},
        )


def _step(comparison: ComparisonData) -> Iterator[Answer]:
    """Whether a whole step became slower, which is what people ask first."""
    for change in comparison.changes:
        if change.name == STEP:
            now = best_time(change.comparable_ns)
            found = [each for each in _rows(comparison) if each.verdict]
            rows_ns = _sum_ns(comparison, found)
            rows = f"; rows that changed: {_signed(rows_ns / change.old_ns)}"
            yield Answer(
                "step",
                "A step",
                f"{best_time(change.old_ns)} before, {now} now",
                evidence=f"{_signed(change.relative_change)}, "
                + _doubt(comparison, change)
                + rows * bool(rows_ns and not change.verdict),
                numbers=_numbers(change),
            )


def _doubt(comparison: ComparisonData, change: Change) -> str:
    """``slower, noise 1.2 %``, or ``within noise of 1.2 %``."""
    noise = known_noise(change.noise)
    text = "" if noise is None else percent(noise)
    if noise is None or abs(change.relative_change) > noise:
        word = "slower" if change.relative_change > 0 else "faster"
        perhaps = "perhaps " if comparison.is_guess else ""
        less = "" if change.verdict else f" by less than {percent(change.threshold)}"
        return f"{perhaps}{word}{less}" + f", noise {text}" * bool(text)
    return f"within noise of {text}"


def _rows(comparison: ComparisonData) -> list[Change]:
    """What people need, but for the whole step."""
    return [change for change in comparison.printed if change.name != STEP]


def _sum_ns(comparison: ComparisonData, found: Sequence[Change]) -> float:
    """What the changes make of a step in all; 0 where that cannot be added up."""
    if not comparison.steps or comparison.by != "module":
        return 0.0
    return sum(map(comparison.in_step_ns, _outermost(found)))


def _together(comparison: ComparisonData) -> Answer:
    """What all rows have in common."""
    change, noise, cause = comparison.together
    known = known_noise(noise)
    moved = _signed(change) + (f", noise {percent(known)}" if known else "")
    if cause == "unknown":
        text = "too few modules to tell the machine's speed: it is not taken out"
    elif cause == "program":
        text = f"{moved}: the program, as runs took turns on the same machine"
    else:
        text = f"{moved}: the machine's speed, taken out of the times now"
    evidence = ""
    if cause == "machine" and not comparison.in_turns:
        evidence = "whether the program is slower as a whole, runs in turns would tell"
    return Answer(
        "together",
        "All rows together",
        text,
        evidence=evidence,
        numbers={"change": change, "noise": known_noise(noise), "cause": cause},
    )


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _answer(comparison: ComparisonData, name: Literal["slower", "faster"]) -> Answer:
    """How many rows became slower (or faster), and the largest of these changes."""
    rows = _rows(comparison)
    of = plural(len(rows), "row")
    found = [change for change in rows if change.verdict == name]
    if not found:
        return Answer(name, name.title(), f"none of {of}")
    most = _innermost(ranked(comparison, found))
    where = f"{most.name}, {most.phase}" if most.phase else most.name
    unit = "step" if comparison.steps else "call"
    by = f"by {best_time(abs(comparison.in_step_ns(most)))} a {unit}"
    in_all_ns = _sum_ns(comparison, found)
    sign = "-" if in_all_ns < 0 else "+"
    in_all = f", {sign}{best_time(abs(in_all_ns))} a step" if in_all_ns else ""
    perhaps = "perhaps " if comparison.is_guess else ""
    return Answer(
        name,
        name.title(),
        f"{perhaps}{len(found)} of {of}{in_all}",
        evidence=f"most of all {where}, {by} ({percent(abs(most.relative_change))})",
        numbers={
            "rows": len(found),
            "row": most.name,
            "phase": most.phase,
            **_numbers(most),
        },
        next_step=_next_step(comparison),
    )


def _numbers(change: Change) -> dict[str, Value]:
    return {
        "old_ns": change.old_ns,
        "new_ns": change.new_ns,
        "change_ns": change.difference_ns,
        "relative_change": change.relative_change,
        "noise": known_noise(change.noise),
    }


def _outermost(found: Sequence[Change]) -> list[Change]:
    """The rows that are not inside of others."""
    rows = {(_path(change), change.phase) for change in found}
    return [c for c in found if rows.isdisjoint((p, c.phase) for p in _around(c))]


def _innermost(found: Sequence[Change]) -> Change:
    """The first row, with the largest change; or a row inside of it with half of it."""
    most = found[0]
    for change in found[1:]:
        is_inside = change.phase == most.phase and _path(most) in _around(change)
        if is_inside and 2 * _total_ns(change) >= _total_ns(most):
            most = change
    return most


def _around(change: Change) -> set[str]:
    """The paths of what a row of this phase may be inside of."""
    path = _path(change)
    ends = [place for place, sign in enumerate(path) if sign == "."]
    return {BACKWARD_NAME, *(path[:end] for end in ends)} - {path}


def _path(change: Change) -> str:
    """``Net.blocks.*.norm`` of a module, or of the row of several."""
    return without_numbers(change.name.partition(" (")[0])


def _total_ns(change: Change) -> float:
    return abs(change.difference_ns) * change.new_calls


def _next_step(comparison: ComparisonData) -> str:
    """What finds which functions changed; "" if the comparison does."""
    if comparison.by in ("function", "call"):
        return ""
    if comparison.old.has_functions and comparison.new.has_functions:
        return "compare --by call"
    return "profile(functions=True) of both, and compare --by call"


def known_noise(noise: float) -> float | None:
    """The noise; None if it is not known, or so large that it says nothing."""
    return noise if noise < _NO_NOISE else None
