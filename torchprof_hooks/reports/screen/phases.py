"""Where the time went by phase, with a bar for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Final

from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.reports.program.part import PHASE_TITLES, shown_times_ns
from torchprof_hooks.reports.screen.terminal import Line, Style
from torchprof_hooks.reports.table import Table, TextColumn, share_column, table_lines
from torchprof_hooks.reports.units import format_times

#: The most lines of phases.
_MOST_PHASES: Final = 6
_REST: Final = "all else"
#: Characters of the longest bar.
_LONGEST_BAR: Final = 40
_STYLES: Final[Mapping[str, Style]] = {
    PHASE_TITLES["forward"]: "forward",
    PHASE_TITLES["backward"]: "backward",
    PHASE_TITLES["recompute"]: "backward",
}


def phase_bars(loop: Profile, start_up: Profile | None, width: int) -> Iterator[Line]:
    """The phases with their times, and bars for those of the loop."""
    table, own = phase_table(loop, start_up, most=_MOST_PHASES)
    header, *rows = table_lines(*table, width)
    yield Line(header, "title")
    for title, row, phase_ns in zip(table.labels[1:], rows, own, strict=True):
        bar = "#" * ceil(_LONGEST_BAR * phase_ns / max(*own, 1))
        line = f"{row}  {bar}".rstrip()[: max(width, len(row))]
        yield Line(line, _STYLES.get(title, ""))


def phase_table(
    loop: Profile,
    start_up: Profile | None,
    unit: str = "auto",
    most: int = len(PHASE_TITLES),
) -> tuple[Table, list[int]]:
    """The phases, the longest first, and their times in nanoseconds.

    start_up: what came before the loop, which has a column of its own then.
    most: lines; in the last one, the shortest phases are together.
    """
    times, before = _times(loop), _times(start_up) if start_up else {}
    titles = sorted({**times, **before}, key=lambda title: -times.get(title, 0))
    if len(titles) > most:
        rest = titles[most - 1 :]
        titles = [*titles[: most - 1], _REST]
        times[_REST] = sum(times.get(title, 0) for title in rest)
        before[_REST] = sum(before.get(title, 0) for title in rest)
    own = [times.get(title, 0) for title in titles]
    columns = [TextColumn("loop" if start_up else "time", format_times(own, unit))]
    if start_up:
        early = [before.get(title, 0) for title in titles]
        columns.insert(0, TextColumn("start-up", format_times(early, unit)))
    columns.append(share_column(own, loop.wall_ns))
    return Table(["phase", *titles], columns), own


def _times(profile: Profile) -> dict[str, int]:
    times = shown_times_ns(profile)
    return {PHASE_TITLES[phase]: phase_ns for phase, phase_ns in times.items()}
