"""The memory of a run: its peak, whose it was, and how it rose and fell in one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torchprof_hooks.profiles.names import OUTSIDE_NAME
from torchprof_hooks.profiles.trace.memory_replay import (
    DeviceReplay,
    Level,
    MemoryReplay,
)
from torchprof_hooks.reports.html.document import escaped, paragraphs
from torchprof_hooks.reports.html.phases import chart
from torchprof_hooks.reports.memory_tree import heading
from torchprof_hooks.reports.source import Source
from torchprof_hooks.reports.units import best_byte_format, best_time

#: Height of the picture in pixels.
_HEIGHT: Final = 140
#: Units of the picture from left to right; it is as wide as its place.
_WIDTH: Final = 1000


def memory_section(source: Source) -> str:
    """What was measured of memory, "" if nothing was."""
    parts = []
    summary, replay = source.measured.memory, source.program.replay
    if summary is not None:
        parts.append(paragraphs([heading(source.measured, summary)]))
    if replay is not None:
        kept = (device for device in replay.devices if device.as_run_bytes)
        parts += [_time_line(replay, device) for device in kept]
    elif summary is not None and source.program.not_replayed:
        parts.append(paragraphs([f"No time line: {source.program.not_replayed}"]))
    return "".join(parts)


def _time_line(replay: MemoryReplay, device: DeviceReplay) -> str:
    """The level of one device from the begin of the step to its end."""
    where = f"{device.module}: {device.operation}" if device.operation else OUTSIDE_NAME
    peak = best_byte_format(device.as_run_bytes)
    text = (
        f"Outputs of operations on {device.device} in step {replay.step}: {peak} at "
        f"their peak, in {where} ({device.phase}). What was there before the step is "
        "left out."
    )
    return paragraphs([text]) + _curve(device.levels, where)


def _curve(levels: Sequence[Level], owner: str) -> str:
    """The level over time, with its peak and whose it is."""
    if len(levels) < 2:
        return ""
    last_ns = levels[-1].offset_ns or 1
    peak = max(levels, key=lambda level: level.size_bytes)
    top = peak.size_bytes or 1

    def x(level: Level) -> float:
        return _WIDTH * level.offset_ns / last_ns

    def y(level: Level) -> float:
        return _HEIGHT - (_HEIGHT - 10) * level.size_bytes / top

    # A level holds until the next one: steps, not slopes.
    line = "".join(f"H{x(level):.1f}V{y(level):.1f}" for level in levels)
    at = 100 * x(peak) / _WIDTH
    label = escaped(f"{best_byte_format(peak.size_bytes)}, {owner}")
    anchor, side = ("end", -6) if at > 60 else ("start", 6)
    drawn = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="100%" height="{_HEIGHT}" '
        f'preserveAspectRatio="none"><path class="level" '
        f'd="M0,{_HEIGHT}{line}V{_HEIGHT}Z"/></svg>'
        f'<line x1="{at:.2f}%" x2="{at:.2f}%" y1="0" y2="{_HEIGHT}" class="peak"/>'
        f'<svg x="{at:.2f}%" y="0" overflow="visible" width="1" height="20">'
        f'<text x="{side}" y="14" text-anchor="{anchor}">{label}</text></svg>'
    )
    low, high = "begin of the step", best_time(last_ns)
    return chart("Memory during one step", _HEIGHT, drawn, low, high)
