"""Who waits for whom, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from torchprof_hooks.profiles.names import Grouping
from torchprof_hooks.profiles.ranks.peers import coordinates, dimensions
from torchprof_hooks.profiles.ranks.rank import WAITING_PHASES, Rank
from torchprof_hooks.profiles.ranks.ranks import Ranks
from torchprof_hooks.profiles.ranks.skew import (
    RANK_PHASES,
    RankPhase,
    SkewRow,
    phase_times,
)
from torchprof_hooks.reports.ranks.collectives import exchanged_lines
from torchprof_hooks.reports.ranks.sentences import (
    absent_texts,
    command_text,
    compared_text,
    sentences,
)
from torchprof_hooks.reports.table import (
    Table,
    TextColumn,
    plural,
    table_lines,
    time_columns,
    wrap,
)

#: Rows of the table of skews, unless more are asked for.
ROWS: Final = 10
#: If there are more ranks than this, only those that wait least and most are shown.
_MOST_RANKS: Final = 16
_SLOW: Final = "  <- slow"
#: Skews of less than this share of a step say nothing.
_LEAST_SKEW: Final = 0.01


def ranks_report(
    ranks: Ranks, by: Grouping = "module", max_rows: int = ROWS, width: int = 120
) -> str:
    """The verdict, the phases of each rank, and the rows in which ranks differ.

    Example::

        Rank 2 is slow: the others wait 30.00ms for it in each step of 60.20ms (49.8 %).
        It spends that in Net.head, forward: 40.00ms a step, the others 10.00ms.
        Up to 3.01ms may be chance: steps differ.

        4 of 4 ranks of train.py on node0; a step on average:
        rank  steps     step  forward  backward  waiting    data   other
        0        40  60.20ms  16.00ms   12.00ms  30.20ms  1.00ms  1.00ms
        ...
        2        40  60.20ms  46.00ms   12.00ms   0.20ms  1.00ms  1.00ms  <- slow

        Where ranks differ: own time in a step; skew: the worst above the median
        row         phase    least   median     most  worst rank     skew
        Net.head  forward  10.00ms  10.00ms  40.00ms           2  30.00ms

    and a table of what they exchange (see `exchanged_lines`).
    """
    absent = list(absent_texts(ranks))
    blocks = [
        [wrap(line, width) for line in (*absent, *sentences(ranks.verdict))],
        list(_rank_lines(ranks, width)),
        list(_row_lines(ranks, skewed_rows(ranks, by), max_rows, width)),
        list(exchanged_lines(ranks.collectives, max_rows, width)),
        [wrap(note, width) for note in ranks.notes],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _rank_lines(ranks: Ranks, width: int) -> Iterator[str]:
    shown, left_out = shown_ranks(ranks)
    yield f"{counted_text(ranks)}; a step on average:"
    header, *lines = table_lines(*step_table(shown), width - len(_SLOW))
    yield header
    for rank, line in zip(shown, lines, strict=True):
        yield line + _SLOW * is_slow(ranks, rank)
    if left_out:
        yield f"... {left_out} more ranks, which wait neither least nor most"
    if compared := compared_text(ranks):
        yield wrap(compared, width)


def is_slow(ranks: Ranks, rank: Rank) -> bool:
    """Whether the others wait for this rank."""
    return rank.number in (ranks.verdict.rank, *ranks.verdict.also)


def step_table(shown: Sequence[Rank]) -> Table:
    """A step of each rank on average, by phase, with the rank's place in the dimensions
    of a device mesh."""
    mesh = [
        TextColumn(name, [str(coordinates(rank)[name]) for rank in shown])
        for name in dimensions(shown)
    ]
    steps = TextColumn("steps", [str(rank.steps) for rank in shown])
    times = {"step": [rank.step_ns for rank in shown]}
    times |= {str(phase): found for phase, found in times_by_phase(shown).items()}
    labels = ["rank", *(str(rank.number) for rank in shown)]
    return Table(labels, [*mesh, steps, *time_columns(times)])


def times_by_phase(shown: Sequence[Rank]) -> dict[RankPhase, list[float]]:
    """The times of all ranks in each phase in which any has some."""
    times = [phase_times(rank) for rank in shown]
    by_phase = {phase: [each[phase] for each in times] for phase in RANK_PHASES}
    return {phase: of_ranks for phase, of_ranks in by_phase.items() if any(of_ranks)}


def shown_ranks(ranks: Ranks) -> tuple[Sequence[Rank], int]:
    """The ranks that have a line, and how many have none."""
    if len(ranks.ranks) <= _MOST_RANKS:
        return ranks.ranks, 0

    def waited_ns(rank: Rank) -> float:
        times = phase_times(rank)
        return times["waiting"] + times["communication"]

    by_waiting = sorted(ranks.ranks, key=waited_ns)
    half = _MOST_RANKS // 2
    shown = [*by_waiting[:half], *by_waiting[-half:]]
    return shown, len(ranks.ranks) - len(shown)


def counted_text(ranks: Ranks) -> str:
    """Which ranks there are: ``4 of 4 ranks of train.py on node0``."""
    hosts = sorted({rank.provenance.host for rank in ranks.ranks})
    on = hosts[0] if len(hosts) == 1 else plural(len(hosts), "host")
    counted = f"{len(ranks.ranks)} of {plural(ranks.world_size, 'rank')}"
    return f"{counted} of {command_text(ranks)} on {on}"


def skewed_rows(ranks: Ranks, by: Grouping) -> Sequence[SkewRow]:
    """The rows in which ranks differ, the largest differences first. Waiting is left
    out: it is the consequence of the other differences."""
    least_ns = _LEAST_SKEW * ranks.verdict.step_ns
    return [
        row
        for row in ranks.rows(by)
        if row.skew_ns >= least_ns and row.phase not in WAITING_PHASES
    ]


def _row_lines(
    ranks: Ranks, rows: Sequence[SkewRow], max_rows: int, width: int
) -> Iterator[str]:
    shown = rows[:max_rows]
    if not shown:
        return
    yield "Where ranks differ: own time in a step; skew: the worst above the median"
    yield from table_lines(*skew_table(ranks, shown), width)
    if len(rows) > len(shown):
        yield f"... {plural(len(rows) - len(shown), 'more row')}"


def skew_table(ranks: Ranks, shown: Sequence[SkewRow]) -> Table:
    """Own times in a step, and by how much the worst is above the median."""
    numbers = [rank.number for rank in ranks.ranks]
    columns = [
        TextColumn("phase", [row.phase for row in shown], is_words=True),
        *time_columns(
            {
                "least": [row.least_ns for row in shown],
                "median": [row.median_ns for row in shown],
                "most": [row.most_ns for row in shown],
            }
        ),
        TextColumn("worst rank", [str(numbers[row.worst]) for row in shown]),
        *time_columns({"skew": [row.skew_ns for row in shown]}),
    ]
    return Table(["row", *(row.name for row in shown)], columns)
