"""What a screen tells below the modules, shorter where these need the room."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Final

from torchprof_hooks.reports.flop_tree import utilisation_text
from torchprof_hooks.reports.header import device_text
from torchprof_hooks.reports.memory_tree import peak_text
from torchprof_hooks.reports.program.device_idle import idle_lines
from torchprof_hooks.reports.screen.functions import function_lines, place_lines
from torchprof_hooks.reports.screen.terminal import Line
from torchprof_hooks.reports.source import Source
from torchprof_hooks.reports.table import plural, printable, shorten
from torchprof_hooks.reports.units import best_count_format

#: The most lines of all tips together; how few they become where there is little room;
#: and the most lines of notes on what is not as usual.
_MOST_TIPS: Final = 6
_FEWEST_TIPS: Final = 2
_MOST_NOTES: Final = 3
#: Rows of where the host was while a device idled.
_MOST_IDLE: Final = 4


def below(source: Source, more: str, width: int) -> Iterator[list[list[Line]]]:
    """Versions of the blocks below the modules, each shorter than the one before.

    more: the methods or options that show more.
    """
    functions = list(function_lines(source, width))
    places, idle = list(place_lines(source, width)), list(_idle(source, width))
    rates, ending = list(_rates(source, width)), list(notes(source, more, width))
    for most_tips in range(_MOST_TIPS, _FEWEST_TIPS - 1, -1):
        last = [*rates, *_tips(source, more, width, most_tips), *ending]
        yield [functions, places, idle, last]
    yield [functions, idle, last]


def _rates(source: Source, width: int) -> Iterator[Line]:
    """What is used of the device: its operations, and its memory."""
    # Of a program, operations were counted in some steps alone: those of all are an
    # estimate.
    profile = source.functions if source.is_estimate else source.measured
    if text := device_text(profile):
        yield Line(shorten(printable(f"Device: {text}"), width))
    if text := utilisation_text(profile):
        yield Line(shorten(printable(f"Utilisation: {text}"), width))
    if source.measured.items or profile.items:
        speed = best_count_format(profile.items_per_second)
        yield Line(f"Throughput: {speed} items per second")
    yield from _memory(source, width)


def _idle(source: Source, width: int) -> Iterator[Line]:
    """Whom the device waited for in one step, if that was asked for."""
    idle = source.program.device_idle
    if idle is not None:
        lines = idle_lines(idle, _MOST_IDLE)
        yield from (Line(shorten(printable(line), width)) for line in lines)


def _memory(source: Source, width: int) -> Iterator[Line]:
    memory = source.measured.memory
    if memory is None:
        return
    text = f"not measured: {memory.unavailable}"
    if memory.source:
        of_cpu = "the process" if memory.is_net else "tensors on the CPU"
        owner = memory.source.replace("cpu", of_cpu)
        text = f"{peak_text(source.measured, memory)}, of {owner}"
    yield Line(shorten(printable(f"Memory: {text}"), width))


def _tips(source: Source, more: str, width: int, most: int) -> Iterator[Line]:
    """As many tips as there is room for, in at most `most` lines."""
    left, tips = most, source.tips
    for shown, tip in enumerate(tips):
        lines = _wrapped(str(tip), max(width - 5, 1))
        if shown and len(lines) > left - 1:
            rest = plural(len(tips) - shown, "more tip")
            yield Line(f"     ({rest}: {more})", "faint")
            return
        if len(lines) > left - 1:
            lines = [*lines[: left - 2], shorten(lines[left - 2] + " ...", width - 5)]
        left -= len(lines)
        for number, line in enumerate(lines):
            yield Line(("     " if number else "Tip: ") + line)


def _wrapped(text: str, width: int) -> list[str]:
    lines = wrap(printable(text), width, break_on_hyphens=False)
    return [shorten(line, width) for line in lines]  # some characters are wide


def notes(source: Source, more: str, width: int) -> Iterator[Line]:
    """What measuring took, what is not as usual, and where there is more."""
    text = "; ".join(source.notes)
    lines = _wrapped(text[0].upper() + text[1:], width)
    if len(lines) >= _MOST_NOTES:
        lines = [*lines[: _MOST_NOTES - 2], shorten(" ".join(lines[1:]), width)]
    for line in (*lines, f"More: {more}"):
        yield Line(line, "faint")
