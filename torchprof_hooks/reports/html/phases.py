"""What the phases of a step take, and which steps were slow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from torchprof_hooks.profiles.step_times import StepTimes
from torchprof_hooks.reports.html.document import escaped, html_table, paragraphs
from torchprof_hooks.reports.program.part import PHASE_TITLES, shown_times_ns
from torchprof_hooks.reports.screen.phases import phase_table
from torchprof_hooks.reports.source import Source
from torchprof_hooks.reports.table import Table, TextColumn, percent, plural
from torchprof_hooks.reports.units import best_time

#: A step is slow if it takes so many times the median.
SLOW: Final = 1.5

#: Bars of the picture of durations, and their height in pixels.
_BARS: Final = 48
_HEIGHT: Final = 90


def phase_section(source: Source) -> str:
    """A bar of all phases, their times in a table, and the durations of steps."""
    profile = source.modules
    times = shown_times_ns(profile)
    found = [(phase, phase_ns) for phase, phase_ns in times.items() if phase_ns > 0]
    return "".join(
        [
            _phase_bar(found, profile.wall_ns),
            '<div class="columns">',
            html_table("Phases", _table(source)),
            f"<div>{_steps(source)}</div></div>",
        ]
    )


def _table(source: Source) -> Table:
    """The phases of the loop, and beside them those of what came before."""
    profile = source.modules
    (labels, columns), own = phase_table(profile, source.start_up, "auto_foreach")
    if profile.steps:
        each = [best_time(phase_ns / profile.steps) for phase_ns in own]
        columns.append(TextColumn("per step", each))
    return Table(labels, columns)


def _phase_bar(found: Sequence[tuple[str, int]], wall_ns: int) -> str:
    """Segments as wide as the phases are long, and what they mean."""
    parts = [
        (phase, f"{PHASE_TITLES[phase]} {percent(ns, wall_ns)}", ns)
        for phase, ns in found
    ]
    segments = "".join(segment(phase, text, ns) for phase, text, ns in parts)
    legend = phase_legend((phase, text) for phase, text, _ in parts)
    return f'<div class="phases" aria-hidden="true">{segments}</div>{legend}'


def segment(phase: str, text: str, phase_ns: float) -> str:
    """A part of a bar, as wide as the phase is long."""
    return (
        f'<span class="phase-{phase}" style="flex-grow:{round(phase_ns)}" '
        f'title="{escaped(text)}"></span>'
    )


def phase_legend(phases: Iterable[tuple[str, str]]) -> str:
    """What the colours of phases mean."""
    items = "".join(
        f'<li><span class="dot phase-{phase}"></span>{escaped(text)}</li>'
        for phase, text in phases
    )
    return f'<ul class="legend">{items}</ul>'


def _steps(source: Source) -> str:
    """How many steps were slow, and how many took how long."""
    times = source.step_times
    if not source.modules.steps and not times.steps:
        nothing = "No training step was seen: no optimizer stepped, and no backward "
        return paragraphs([f"{nothing}pass ran. There is nothing to say per step."])
    if times.later_steps < 2:
        return ""
    slow_ns = SLOW * times.quantile_ns(0.5)
    slow = sum(b.steps for b in times.later if b.total_ns > slow_ns * b.steps)
    text = f"{slow} of {times.later_steps} later steps took longer than {SLOW:g} times "
    return paragraphs([f"{text}the median."]) + _durations(times)


class _Bar(NamedTuple):
    """Steps of about one duration."""

    steps: int
    least_ns: float
    most_ns: float


def _durations(times: StepTimes) -> str:
    """How many steps took how long; the slow ones are marked."""
    bars = _bars(times)
    median_ns = times.quantile_ns(0.5)
    most = max(bar.steps for bar in bars)
    drawn = []
    for number, bar in enumerate(bars):
        if not bar.steps:
            continue
        height = max(round(_HEIGHT * bar.steps / most), 3)
        is_slow = bar.least_ns > SLOW * median_ns
        title = f"{plural(bar.steps, 'step')} of {best_time(bar.least_ns)}"
        title += f" to {best_time(bar.most_ns)}" + ": slow" * is_slow
        drawn.append(
            f'<rect class="{"slow" if is_slow else "usual"}" '
            f'x="{100 * number / _BARS:.2f}%" y="{_HEIGHT - height}" '
            f'width="{90 / _BARS:.2f}%" height="{height}">'
            f"<title>{escaped(title)}</title></rect>"
        )
    low, high = best_time(bars[0].least_ns), best_time(bars[-1].most_ns)
    return chart("How many steps took how long", _HEIGHT, "".join(drawn), low, high)


def chart(label: str, height: int, drawn: str, low: str, high: str) -> str:
    """A drawing above an axis with labels at both ends."""
    return (
        f'<svg class="chart" width="100%" height="{height + 20}" role="img" '
        f'aria-label="{label}">{drawn}'
        f'<line x1="0" x2="100%" y1="{height}" y2="{height}"/>'
        f'<text x="0" y="{height + 15}">{escaped(low)}</text>'
        f'<text x="100%" y="{height + 15}" text-anchor="end">{escaped(high)}</text>'
        "</svg>"
    )


def _bars(times: StepTimes) -> list[_Bar]:
    """Bars of one width each, from the shortest duration to the longest."""
    means = [(bucket.total_ns / bucket.steps, bucket.steps) for bucket in times.later]
    low = min(mean for mean, _ in means)
    width = max(max(mean for mean, _ in means) - low, 1) / _BARS
    counts = [0] * _BARS
    for mean, steps in means:
        counts[min(int((mean - low) / width), _BARS - 1)] += steps
    return [
        _Bar(count, low + number * width, low + (number + 1) * width)
        for number, count in enumerate(counts)
    ]
