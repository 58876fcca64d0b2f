"""Columns about the bytes that functions move, and about what bounds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from torchprof_hooks.profiles.operations.roofline import Roofline, roofline_of
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.reports.operations.flop_tree import peak_text
from torchprof_hooks.reports.table import TextColumn
from torchprof_hooks.reports.units import best_byte_format, counted

#: By header; {per}: "per step"; {roof}: what the device can do.
ROOFLINE_LEGENDS: Final = {
    "moved": "moved: bytes read and written{per}, in phases where shapes tell",
    "FLOP/byte": "FLOP/byte: operations per byte moved",
    "roof": "roof: what bounds it, and how much of that is reached{roof}",
}


def roofline_columns(profile: Profile, rows: Sequence[Row]) -> Iterator[TextColumn]:
    """Bytes per step, intensity and roof of each row, without columns of which nothing
    is known. What is not known is left blank; a view moves ``0.00B``.

    Example::

        function  ...     moved  FLOP/byte         roof
        linear    ...  262.14KB       42.7  compute 81%
        add       ...    1.50MB              memory 64%
    """
    found = [roofline_of(profile, row.phases.values()) for row in rows]
    steps = profile.steps or 1
    for header, text in (
        ("moved", lambda each: _moved(each, steps)),
        ("FLOP/byte", _intensity),
        ("roof", _roof),
    ):
        texts = [text(each) if each else "" for each in found]
        if any(texts):
            yield TextColumn(header, texts)


def roofline_legend(text: str, profile: Profile) -> str:
    """One of the legends, for this profile."""
    per = " per step" if profile.steps else ""
    return text.format(per=per, roof=_roof_text(profile))


def _roof_text(profile: Profile) -> str:
    """``, of 58.20 GFLOP/s (...) and 10.40 GB/s (...)``; "" if it is not known."""
    peak = profile.peak
    if peak is None or peak.bandwidth is None:
        return ""
    number, prefix = counted(peak.bandwidth.bytes_per_second)
    speed = f"{number} {prefix}B/s ({peak.bandwidth.source})"
    return f", of {peak_text(peak)} and {speed}"


def _moved(found: Roofline, steps: int) -> str:
    moved = found.read_bytes + found.written_bytes
    return best_byte_format(round(moved / steps))


def _intensity(found: Roofline) -> str:
    return "" if found.intensity is None else f"{found.intensity:.1f}"


def _roof(found: Roofline) -> str:
    if not found.bound or found.reached is None:
        return found.bound
    return f"{found.bound} {100 * found.reached:.0f} %"
