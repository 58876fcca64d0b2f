"""The first screen of a report: at most forty lines that say where the time went."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Final

from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.reports.header import nothing_text, rank_texts
from torchprof_hooks.reports.hottest import answers, shares_of
from torchprof_hooks.reports.screen.below import below, notes
from torchprof_hooks.reports.screen.modules import module_lines
from torchprof_hooks.reports.screen.phases import phase_bars
from torchprof_hooks.reports.screen.terminal import WIDTH, Line, joined
from torchprof_hooks.reports.source import Source, source_of, source_of_loop
from torchprof_hooks.reports.table import display_width, printable, shorten

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
    return _screen(source, "report(full=True), to_html(path)", width, LINES, colour)


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
    return _screen(source, "--full, --html FILE", width, lines, colour)


def _screen(source: Source, more: str, width: int, lines: int, colour: bool) -> str:
    """more: the methods or options that show more."""
    if source.modules.is_empty:
        texts = nothing_text(source.modules).splitlines()
        nothing = [Line(shorten(text, width)) for text in texts]
        head = [*_title(source, width), *notes(source, more, width)]
        return joined([head, nothing], colour=colour)
    hot = source.hottest
    above = [
        [*_title(source, width), *_answers(source, width)],
        list(phase_bars(source.modules, source.start_up, width)),
    ]

    def modules(most: int) -> list[Line]:
        return list(module_lines(source.modules, source.tree, hot, most, width))

    wanted = len(modules(_FEWEST_MODULES)) - 1  # one is for the header
    for lower in below(source, more, width):
        used = sum(len(block) + 1 for block in (*above, *lower) if block)
        room = lines - used - 1
        if room >= wanted:
            break
    tree = modules(min(room, _MOST_MODULES))
    return joined([*above, tree, *lower], colour=colour)


def _title(source: Source, width: int) -> Iterator[Line]:
    """What was run, by which of several ranks, how long, and its steps."""
    run = printable(" ".join(source.title.split()))
    name = ", ".join(filter(None, [*rank_texts(source.measured), run]))
    times = source.times_text
    title = "torchprof_hooks: " + ", ".join(filter(None, [name, times]))
    if display_width(title) <= width:
        yield Line(title, "title")
    else:
        yield Line(shorten(f"torchprof_hooks: {name}", width), "title")
        yield Line(shorten(times, width))
    steps = ", ".join(source.step_texts)
    yield from (Line(text) for text in wrap(steps, width, subsequent_indent="  "))


def _answers(source: Source, width: int) -> Iterator[Line]:
    found = answers(source.hottest, shares_of(source.modules))
    for question, answer, evidence in found:
        if not evidence:
            yield Line(shorten(f"{question}: {answer}", width))
            continue
        room = max(width - len(f"{question}: , {evidence}"), 20)
        line = f"{question}: {shorten(printable(answer), room)}, {evidence}"
        yield Line(shorten(printable(line), width), "hot")
