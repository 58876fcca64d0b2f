"""The first screen of a report: at most forty lines that say where the time went."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from textwrap import wrap
from typing import Final

from torchprof_hooks.profiles.names import MODULE_PHASES
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.reports.header import (
    cost_texts,
    measured_text,
    nothing_text,
    rank_texts,
    step_texts,
)
from torchprof_hooks.reports.hottest import (
    Hottest,
    busy_device,
    hottest,
    shares_of,
)
from torchprof_hooks.reports.program.part import OTHER, PHASE_TITLES
from torchprof_hooks.reports.program.totals import sample_text
from torchprof_hooks.reports.screen.below import Content, below, notes
from torchprof_hooks.reports.screen.line import Line, joined
from torchprof_hooks.reports.screen.modules import module_lines
from torchprof_hooks.reports.screen.phases import phase_bars
from torchprof_hooks.reports.screen.terminal import WIDTH
from torchprof_hooks.reports.source import source_of, source_of_loop
from torchprof_hooks.reports.table import (
    display_width,
    percent,
    printable,
    shorten,
)
from torchprof_hooks.reports.units import best_time

#: Lines of a screen.
LINES: Final = 40
#: Lines of the tree of modules: at most; and those for which other blocks make room, if
#: the tree has as many.
_MOST_MODULES: Final = 14
_FEWEST_MODULES: Final = 6


def profile_screen(
    profile: Profile,
    *,
    corrected: bool = True,
    width: int = WIDTH,
    colour: bool = False,
) -> str:
    """The screen of one profile; for the parameters see `Reportable.report`."""
    source = source_of(profile, corrected=corrected)
    costs = list(cost_texts(profile, has_start_up=source.start_up is not None))
    more = "report(full=True), to_html(path)"
    content = Content(source, costs, more)
    return _screen(content, width, LINES, colour)


def program_screen(
    program: ProgramProfile,
    *,
    width: int = WIDTH,
    lines: int = LINES,
    colour: bool = False,
) -> str:
    """The screen of a whole program: the loop, with the start-up apart, which is all
    until the first step was done, or evaluation calls with which it began.

    lines: how many it may have.
    """
    source = source_of_loop(program)
    costs = cost_texts(program.whole, has_start_up=source.start_up is not None)
    content = Content(source, [*sample_text(program), *costs], "--full, --html FILE")
    return _screen(content, width, lines, colour)


def _screen(content: Content, width: int, lines: int, colour: bool) -> str:
    source = content.source
    if source.modules.is_empty:
        texts = nothing_text(source.modules).splitlines()
        nothing = [Line(shorten(text, width)) for text in texts]
        head = [*_title(content, width), *notes(content, width)]
        return joined([head, nothing], colour=colour)
    rows = [row for row in source.rows("module") if row.kind == "module"]
    hot = hottest(rows, busy_device(source.modules))
    above = [
        [*_title(content, width), *_answers(content, hot, width)],
        list(phase_bars(source.modules, source.start_up, width)),
    ]

    def modules(most: int) -> list[Line]:
        return list(module_lines(source.modules, source.tree, hot, most, width))

    wanted = len(modules(_FEWEST_MODULES)) - 1  # one is for the header
    for lower in below(content, width):
        used = sum(len(block) + 1 for block in (*above, *lower) if block)
        room = lines - used - 1
        if room >= wanted:
            break
    tree = modules(min(room, _MOST_MODULES))
    return joined([*above, tree, *lower], colour=colour)


def _title(content: Content, width: int) -> Iterator[Line]:
    """What was run, by which of several ranks, how long, and its steps."""
    source = content.source
    run = printable(" ".join(source.title.split()))
    name = ", ".join(filter(None, [*rank_texts(source.measured), run]))
    times = measured_text(source.measured)
    if source.start_up:
        before, after = source.start_up.wall_ns, source.modules.wall_ns
        times += f": {best_time(before)} start-up with {source.end_of_start_up}, then "
        times += best_time(after)
        traced = source.program.strata.disturbed.profile.wall_ns
        if traced:
            times += f", and {best_time(traced)} in traced steps"
    title = "torchprof_hooks: " + ", ".join(filter(None, [name, times]))
    if display_width(title) <= width:
        yield Line(title, "title")
    else:
        yield Line(shorten(f"torchprof_hooks: {name}", width), "title")
        yield Line(shorten(times, width))
    # What was measured, maybe in a few steps, with the durations of all steps.
    of_all = replace(source.measured, step_times=source.step_times)
    steps = ", ".join(step_texts(of_all))
    yield from (Line(text) for text in wrap(steps, width, subsequent_indent="  "))


def _answers(content: Content, hot: Hottest | None, width: int) -> Iterator[Line]:
    """Two answers: the hottest module, and whether forward or backward takes longer."""
    profile = content.source.modules
    shares = shares_of(profile)
    _, times, whole_ns = shares
    if hot is not None and hot.own_ns > 0:
        parts = [f"{p} {percent(ns, whole_ns)}" for p, ns in hot.own_times_ns().items()]
        if hot.kind.class_name != hot.name:
            count = f"{len(hot.rows)} " * (len(hot.rows) > 1)
            parts.insert(0, f"{count}{hot.kind.class_name}")
        name = printable(hot.name)
        text = f", {percent(hot.own_ns, whole_ns)}: {', '.join(parts)}"
        room = max(width - 16 - len(shares.on_device) - len(text), 20)
        line = f"Hottest module{shares.on_device}: {shorten(name, room)}{text}"
        yield Line(shorten(printable(line), width), "hot")
    if times.total() <= 0:
        return
    phase, most_ns = times.most_common(1)[0]
    inside = [p for p, _ in times.most_common() if p in MODULE_PHASES and times[p] > 0]
    answer = f"{phase}, {percent(most_ns, whole_ns)}"
    if phase not in MODULE_PHASES:
        title = PHASE_TITLES[phase].removeprefix(OTHER)
        answer = f"neither; {title}, {percent(most_ns, whole_ns)}"
        answer += "".join(f"; {p} {percent(times[p], whole_ns)}" for p in inside)
    yield Line(shorten(f"Forward or backward{shares.on_device}: {answer}", width))
