"""The answers; and where the time went, by phase, function and line of the program."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from math import sqrt
from typing import Final

from torchprof_hooks.documents.build import facts
from torchprof_hooks.documents.build.findings import bottleneck_answer
from torchprof_hooks.documents.build.layers import Hottest, own_ns, variance_ns2
from torchprof_hooks.documents.build.memory import (
    failure_of,
    failure_warnings,
    growth_warnings,
    peak_answer,
)
from torchprof_hooks.documents.build.rules import tip_on_bottleneck
from torchprof_hooks.documents.build.slow_steps import slow_answer
from torchprof_hooks.documents.build.tables import (
    label,
    own_columns,
    share_column,
)
from torchprof_hooks.documents.build.view import View
from torchprof_hooks.documents.document import (
    Answer,
    Answers,
    Column,
    Table,
    Value,
)
from torchprof_hooks.documents.words import percent
from torchprof_hooks.profiles.cells import AFTER_LAST_CELL
from torchprof_hooks.profiles.kinds import count_of
from torchprof_hooks.profiles.names import MODULE_PHASES, Phase
from torchprof_hooks.profiles.phases import PHASE_TITLES

#: The most rows of functions, and of lines of the program.
_MOST_FUNCTIONS: Final = 5
_MOST_PLACES: Final = 3
#: How many of the modules and functions that a line calls are named.
_NAMES_SHOWN: Final = 3
#: The words before the line in `ModuleInfo.place`.
_NO_PLACE: Final = re.compile(r"(called first|made) at ")
#: Where so much of the start-up is garbage collection, it is said what imports are.
_IMPORTING: Final = 0.05
_IMPORTS: Final = "the start-up includes imports, such as torch's for an optimizer"
#: The most phases that the answer names besides the longest; and the least share of
#: these, and of lines of the program.
_PHASES_NAMED: Final = 3
_LEAST_NAMED: Final = 0.01


def answers(view: View) -> Answers:
    """What takes most, which phase and which layers do, which steps were slow, and what
    memory is; if that ran out, nothing else."""
    hot, most, peak = (
        _hottest_module(view),
        _most_time(view),
        peak_answer(view.profile, view.hints.full),
    )
    first, slow = _bottleneck(view, hot), slow_answer(view)
    found = [first, most, slow, hot, peak]
    if hot and view.bottleneck and view.bottleneck.kind == "module":
        found = [first, hot._replace(json_only=True), most, slow, peak]
    warnings = [*failure_warnings(view.profile), *growth_warnings(view.profile)]
    is_over = failure_of(view.profile) is not None
    return Answers(
        [each._replace(json_only=is_over or each.json_only) for each in found if each],
        warnings,
    )


def _bottleneck(view: View, hot: Answer | None) -> Answer | None:
    """What takes most, and can be changed: if that is layers, the same as for these."""
    found = view.bottleneck
    if found is None:
        return None
    tip = tip_on_bottleneck(view)
    if found.kind != "module":
        return bottleneck_answer(found, view.shares, tip.remedy if tip else "")
    assert hot is not None, "these are the hottest layers"
    numbers = {"kind": found.kind, "phase": found.phase, **hot.numbers}
    next_step = tip.remedy if tip else hot.next_step
    return hot._replace(name="bottleneck", numbers=numbers, next_step=next_step)


def _hottest_module(view: View) -> Answer | None:
    hot = view.hottest
    if hot is None or hot.own_ns <= 0:
        return None
    whole_ns = view.whole_ns
    own = hot.own_times_ns()
    parts = [*_departure(view, hot)]
    parts += [f"{phase} {percent(ns, whole_ns)}" for phase, ns in own.items()]
    if hot.kind.class_name != hot.name:
        name, many = hot.kind.class_name, len(hot.rows) > 1
        parts.insert(0, count_of(len(hot.rows), name) if many else name)
    numbers: dict[str, Value] = {
        "class_name": hot.kind.class_name,
        "modules": len(hot.rows),
        "calls": sum(row.calls for row in hot.rows),
        "self_ns": hot.own_ns,
        **{f"{phase}_self_ns": ns for phase, ns in own.items()},
        "whole_ns": whole_ns,
        "clock": hot.device or "host",
    }
    return Answer(
        "hottest_module",
        f"Hottest module{_on(hot.device)}",
        hot.name,
        hot.own_ns / whole_ns,
        None if hot.device else _standard_error(hot, whole_ns),
        ", ".join(parts),
        numbers,
        view.hints.full if view.profile.has_functions else view.hints.functions,
    )


def _departure(view: View, hot: Hottest) -> Iterator[str]:
    """The one of the hottest layers that departs most from the others, if any does."""
    unusual = {one.name for one in view.unusual if one.departure}
    found = [row.name for row in hot.rows if row.name in unusual]
    if found:
        most = max(found, key=lambda name: view.departing[name].more_ns)
        name = f"{most.partition('.')[2]} is " * (len(hot.rows) > 1)
        yield f"{name}{view.departing[most]}"


def _on(device: str) -> str:
    return f" on {device}" if device else ""


def _standard_error(hot: Hottest, whole_ns: int) -> float | None:
    """The standard error of the share of the hottest layers, from the spread of the
    durations of their calls. None if it would be 0: calls are too few, or all alike, or
    have no own time."""
    squares = 0.0
    for row in hot.rows:
        for phase in MODULE_PHASES:
            totals = row.phases[phase]
            if totals.duration_ns > 0:
                own = max(totals.self_ns, 0) / totals.duration_ns
                squares += variance_ns2(totals, min(own, 1.0))
    if not squares:
        return None
    return sqrt(squares) / whole_ns


def _most_time(view: View) -> Answer | None:
    """The phase that takes most time, and others that take much."""
    device, times, whole_ns = view.shares
    if times.total() <= 0:
        return None
    (phase, most_ns), *others = times.most_common()
    least_ns = _LEAST_NAMED * whole_ns
    found = [each for each in others if each[0] != "profiler" and each[1] >= least_ns]
    named = [f"{PHASE_TITLES[p]} {percent(ns, whole_ns)}" for p, ns in found]
    after = view.shown.cells.get(AFTER_LAST_CELL)
    if after and phase == "outside" and after.self_ns >= least_ns and not device:
        named.insert(0, f"with {percent(after.self_ns, whole_ns)} after the last step")
    numbers: dict[str, Value] = {"phase": phase}
    numbers |= {f"{each}_ns": ns for each, ns in times.items()}
    numbers |= {"whole_ns": whole_ns, "clock": device or "host"}
    return Answer(
        "most_time",
        f"Where the time goes{_on(device)}",
        PHASE_TITLES[phase],
        most_ns / max(whole_ns, 1),
        None,
        ", ".join(named[:_PHASES_NAMED]),
        numbers,
    )


def phases(view: View) -> Table:
    """The phases, the longest first, with their times in the start-up beside them; and
    the time of steps that were not measured."""
    times, before = view.phase_times_ns, Counter[Phase]()
    if view.start_up:
        before = view.start_up.phase_times_ns()
    notes = [*facts.unmeasured_texts(view)]
    if before["garbage"] > _IMPORTING * before.total():
        notes.append(_IMPORTS)
    shown = sorted({**times, **before}, key=lambda phase: -times[phase])
    own, steps = [times[phase] for phase in shown], view.shown.steps
    columns = [
        Column("loop" if view.start_up else "time", "ns", own, "self_ns", 0, True),
        share_column("%", own, view.shown.wall_ns, "share"),
    ]
    if view.start_up:
        early = [before[phase] for phase in shown]
        columns.append(Column("start-up", "ns", early, "start_up_ns", 0, True))
    if steps:
        each = [ns / steps for ns in own]
        too = ", with evaluation" * bool(view.shown.step_times.evaluations)
        columns.append(Column(f"per step{too}", "ns", each, "step_ns", is_detail=True))
    return Table(
        "phases",
        "",
        "phase",
        [PHASE_TITLES[phase] for phase in shown],
        columns,
        names=shown,
        notes=notes,
        drawing="bars",
    )


def hot_functions(view: View) -> Table:
    """The functions with the most own time; by the clock of a device if that is busy
    (see `busy_device`)."""
    by_name = view.shown.rows("function") if view.shown.has_functions else ()
    rows = [row for row in by_name if row.kind == "function"]
    rows.sort(key=lambda row: (-own_ns(row, view.device), -row.self_ns, row.name))
    rows = rows[:_MOST_FUNCTIONS]
    columns = own_columns(view.shown, rows)
    labels = [label(row) for row in rows]
    corner = f"function{view.of_shown and ' (loop)'}"
    return Table("hot_functions", "", corner, labels, columns, left_out="")


def places(view: View) -> Table:
    """The lines of the program with the most cumulative time in their calls: of models,
    and of functions outside of these. A function that is called on several lines counts
    for the first."""
    profile, outermost = view.shown, Counter[str]()
    for (path, _), totals in profile.cells.items():
        outermost[path[0]] += totals.self_ns
    times, names = Counter[str](), defaultdict[str, dict[str, None]](dict)
    for name, self_ns in outermost.items():
        info = profile.modules[name]
        if place := _NO_PLACE.sub("", info.place):
            times[place] += self_ns
            names[place][info.class_name] = None
    least_ns = _LEAST_NAMED * view.shown.wall_ns
    shown = [each for each in times.most_common(_MOST_PLACES) if each[1] >= least_ns]
    own = [ns for _, ns in shown]
    columns = [
        Column("total", "ns", own, "cumulative_ns"),
        share_column("%", own, view.shown.wall_ns, "share"),
    ]
    labels = []
    for place, _ in shown:
        called = [*names[place]]
        more = ["..."] * (len(called) > _NAMES_SHOWN)
        labels.append(f"{place} {', '.join([*called[:_NAMES_SHOWN], *more])}")
    corner = f"line of the program{view.of_shown and ' (loop)'}"
    names_of_rows = [place for place, _ in shown]
    return Table("lines", "", corner, labels, columns, names=names_of_rows)
