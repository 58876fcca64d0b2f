"""The document of the ranks of a run: which rank the others wait for, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from torchprof_hooks.documents.build.operations import bytes_a_call, collective_label
from torchprof_hooks.documents.build.slow_rank import ranks_text, slow_rank_answer
from torchprof_hooks.documents.document import (
    Answers,
    Block,
    Column,
    Document,
    Facts,
    Table,
    Tone,
)
from torchprof_hooks.documents.render.terminal import shorten
from torchprof_hooks.documents.render.units import best_time
from torchprof_hooks.documents.words import plural
from torchprof_hooks.profiles.names import Grouping, Phase
from torchprof_hooks.profiles.phases import PHASES, WAITING_PHASES
from torchprof_hooks.profiles.ranks.peers import coordinates, dimensions
from torchprof_hooks.profiles.ranks.rank import Rank
from torchprof_hooks.profiles.ranks.ranks import RanksData
from torchprof_hooks.profiles.ranks.skew import RankCollective, phase_times

#: The most rows of tables, by default.
ROWS: Final = 10
#: If there are more ranks than this, only those that wait least and most are shown.
_MOST_RANKS: Final = 16
#: The least skew, as a share of a step, that is shown.
_LEAST_SKEW: Final = 0.01
#: The most characters of a command in titles: launchers may give hundreds of arguments.
_LONGEST_COMMAND: Final = 60


def ranks_document(
    ranks: RanksData, by: Grouping = "module", max_rows: int | None = None
) -> Document:
    """The verdict, a step of each rank by phase, the rows in which ranks differ, and
    what they exchange; for pages and programs, also the files of the ranks.

    by: what rows are, as for `Profile.rows`.
    max_rows: the most rows of tables as text; 10 by default.
    """
    most = max_rows or ROWS
    blocks: list[Block] = [
        Answers([slow_rank_answer(ranks)], list(_absent(ranks))),
        _steps_table(ranks),
        _skews(ranks, by, most),
    ]
    if ranks.collectives:
        blocks.append(_exchanged(ranks.collectives, most))
    blocks.append(_files(ranks.ranks))
    if ranks.notes:
        blocks.append(Facts("notes", "", ranks.notes, is_faint=True))
    numbers = {
        "world_size": ranks.world_size,
        "missing": list(ranks.missing),
        "stale": [each._asdict() for each in ranks.stale],
    }
    return Document("ranks", _title(ranks), [], blocks, numbers)


def _title(ranks: RanksData) -> str:
    """The title: ``4 of 4 ranks of train.py on node0``."""
    hosts = sorted({rank.provenance.host for rank in ranks.ranks})
    on = hosts[0] if len(hosts) == 1 else plural(len(hosts), "host")
    command = shorten(ranks.ranks[0].provenance.command, _LONGEST_COMMAND)
    counted = f"{len(ranks.ranks)} of {plural(ranks.world_size, 'rank')}"
    return f"{counted} of {command} on {on}"


def _absent(ranks: RanksData) -> Iterator[str]:
    if ranks.missing:
        yield f"MISSING: there is no file of {ranks_text(ranks.missing)}."
    for stale in ranks.stale:
        how = "ended" if stale.has_ended else "wrote its file last"
        age, steps = best_time(stale.age_ns), plural(stale.steps, "step")
        yield f"STALE: rank {stale.rank} {how} {age} before the newest, after {steps}."


# Tables


def _steps_table(ranks: RanksData) -> Table:
    """The mean step of each rank, by phase, with the rank's place in the dimensions of
    a device mesh."""
    shown = ranks.ranks
    times = [phase_times(rank) for rank in shown]
    found = [phase for phase in PHASES if any(each[phase] for each in times)]
    apart = [phase for phase in found if PHASES[phase].is_apart]
    others = [phase for phase in found if phase not in apart]
    other = [sum(each[phase] for phase in others) for each in times]
    columns = [
        *(
            Column(name, "count", [coordinates(r)[name] for r in shown], "", 0, True)
            for name in dimensions(shown)
        ),
        Column("steps", "count", [rank.steps for rank in shown], shows_zeros=True),
        _times("step", [rank.step_ns for rank in shown]),
        *(
            _times(PHASES[phase].title, [each[phase] for each in times], phase)
            for phase in apart
        ),
        *([_times("other", other)] if others else []),
    ]
    return Table(
        "ranks",
        "Ranks: a step on average",
        "rank",
        [str(rank.number) for rank in shown],
        columns,
        importance=_importance(times),
        most=_MOST_RANKS,
        tones=[_tone(ranks, rank) for rank in shown],
        left_out="{count} more ranks, which wait neither least nor most",
        notes=list(_compared(ranks)),
        drawing="stack",
    )


def _times(title: str, values: Sequence[float], name: str = "") -> Column:
    rounded = [round(ns) for ns in values]
    return Column(title, "ns", rounded, f"{name or title}_ns", shows_zeros=True)


def _importance(times: Sequence[Mapping[Phase, float]]) -> list[int]:
    """The importance of each rank (see `Table.ranks`): those that wait least and most
    come first, in turns."""
    waits = [each["waiting"] + each["communication"] for each in times]
    order = sorted(range(len(waits)), key=waits.__getitem__)
    found = [0] * len(order)
    for place, number in enumerate(order):
        after = len(order) - 1 - place
        found[number] = 2 * min(place, after) + (place > after)
    return found


def _tone(ranks: RanksData, rank: Rank) -> Tone:
    """Whether the others wait for this rank."""
    verdict = ranks.verdict
    return "slow" if rank.number in (verdict.rank, *verdict.also) else ""


def _compared(ranks: RanksData) -> Iterator[str]:
    """A note on which ranks are compared with each other, if not all are."""
    if len(ranks.peers) > 1:
        groups = "; ".join(
            ranks_text([ranks.ranks[place].number for place in group]).split(" ", 1)[1]
            for group in ranks.peers
        )
        yield f"Compared with each other, for they do the same: {groups}"


def _skews(ranks: RanksData, by: Grouping, most: int) -> Table:
    """The rows in which ranks differ, the largest difference first. Waiting is left
    out, as it is the consequence of the other differences."""
    least_ns = _LEAST_SKEW * ranks.verdict.step_ns
    rows = [
        row
        for row in ranks.rows(by)
        if row.skew_ns >= least_ns and row.phase not in WAITING_PHASES
    ]
    numbers = [rank.number for rank in ranks.ranks]
    worst = [numbers[row.worst] for row in rows]
    columns = [
        Column("phase", "text", [row.phase for row in rows]),
        _times("least", [row.least_ns for row in rows]),
        _times("median", [row.median_ns for row in rows]),
        _times("most", [row.most_ns for row in rows]),
        Column("worst rank", "count", worst, "worst_rank", shows_zeros=True),
        _times("skew", [row.skew_ns for row in rows]),
        Column("kind", "text", [row.kind for row in rows], is_detail=True),
    ]
    return Table(
        "rows",
        "Where ranks differ: own time in a step; median: of all but the worst; "
        "skew: the worst above it",
        by,
        [row.name for row in rows],
        columns,
        most=most,
    )


def _exchanged(rows: Sequence[RankCollective], most: int) -> Table:
    """A row for each function and group. Column "last": the rank that waits least, so
    most likely the last one to make the call."""
    rates = [row.fastest and row.fastest / 1e9 for row in rows]
    sizes = [bytes_a_call(row.sum) for row in rows]
    columns = [
        Column("calls", "count", [row.sum.calls for row in rows], shows_zeros=True),
        Column("bytes a call", "bytes", sizes, "call_bytes"),
        _times("in call", [row.median_call_ns for row in rows], "call"),
        _times("least", [row.least_ns for row in rows]),
        _times("median", [row.median_ns for row in rows]),
        _times("most", [row.most_ns for row in rows]),
        Column("last", "count", [r.last_rank for r in rows], "last_rank", 0, True),
        Column("GB/s", "number", rates, "gb_per_s"),
    ]
    return Table(
        "communication",
        "What ranks exchange: a call, on average; least, median, most: how long ranks "
        "wait in it; last: the rank that waits least",
        "collective (group)",
        [collective_label(row.sum) for row in rows],
        columns,
        most=most,
    )


def _files(ranks: Sequence[Rank]) -> Table:
    found = [rank.provenance for rank in ranks]
    columns = [
        Column("file", "text", [rank.name for rank in ranks]),
        Column("host", "text", [each.host for each in found]),
        Column("process", "text", [each.pid for each in found], "pid"),
        Column("device", "text", [each.device for each in found]),
        Column("torch", "text", [each.torch for each in found]),
        Column("torchprof_hooks", "text", [each.package for each in found]),
    ]
    labels = [str(rank.number) for rank in ranks]
    title = "Where the numbers come from"
    return Table("files", title, "rank", labels, columns, is_detail=True)
