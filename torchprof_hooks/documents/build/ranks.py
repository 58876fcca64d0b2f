"""The document of the ranks of a run: which rank the others wait for, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from torchprof_hooks.documents.build.full import bytes_a_call, collective_label
from torchprof_hooks.documents.document import (
    Answer,
    Answers,
    Block,
    Column,
    Document,
    Facts,
    Table,
    Tone,
    Value,
)
from torchprof_hooks.documents.render.terminal import shorten
from torchprof_hooks.documents.render.units import best_time
from torchprof_hooks.documents.words import PHASE_TITLES, percent, plural
from torchprof_hooks.profiles.names import Grouping
from torchprof_hooks.profiles.ranks.peers import coordinates, dimensions
from torchprof_hooks.profiles.ranks.rank import WAITING_PHASES, Rank
from torchprof_hooks.profiles.ranks.ranks import RanksData, StaleRank
from torchprof_hooks.profiles.ranks.recent import News
from torchprof_hooks.profiles.ranks.skew import (
    RANK_PHASES,
    RankCollective,
    RankPhase,
    phase_times,
)
from torchprof_hooks.profiles.ranks.verdict import Reason, Verdict

#: The most rows of tables, by default.
ROWS: Final = 10
#: If there are more ranks than this, only those that wait least and most are shown.
_MOST_RANKS: Final = 16
#: The least skew, as a share of a step, that is shown.
_LEAST_SKEW: Final = 0.01
#: The most characters of a command in titles: launchers may give hundreds of arguments.
_LONGEST_COMMAND: Final = 60
#: Inputs that are so many times as large as those of others are more work; and the most
#: by which those differ that are as large.
_LARGER: Final = 1.25
_AS_LARGE: Final = 1.1
_PLACES: Final[Mapping[str, str]] = {
    "outside": "the program's own code, outside modules",
    "data": "data loading",
}


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
        Answers([_answer(ranks)], list(_absent(ranks))),
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


# The verdict


def _answer(ranks: RanksData) -> Answer:
    verdict = ranks.verdict
    share = uncertainty = None
    next_step = ""
    if verdict.rank is not None:
        also = f" (and so {_are(verdict.also)})" if verdict.also else ""
        answer = f"Rank {verdict.rank} is slow{also}"
        evidence = " ".join(_slow(verdict))
        share = verdict.lost_ns / max(verdict.step_ns, 1)
        uncertainty = verdict.noise_ns / max(verdict.step_ns, 1)
        next_step = _show(ranks, verdict.rank)
    elif not verdict.waiting_ns:
        answer = "No rank was seen to communicate"
        evidence = "Nothing says who waits for whom."
    elif verdict.suspect is not None:
        answer = f"Probably rank {verdict.suspect} is slow"
        evidence = " ".join(_slow(verdict))
        next_step = _show(ranks, verdict.suspect)
    else:
        answer = "Even" if verdict.is_even else "Cannot tell"
        evidence = " ".join(_no_rank(verdict))
    return Answer(
        "slow_rank",
        "Who waits for whom",
        answer,
        share,
        uncertainty,
        evidence,
        _verdict_numbers(verdict),
        next_step,
    )


def _show(ranks: RanksData, number: int) -> str:
    """The command that shows the report of a rank."""
    [name] = (rank.name for rank in ranks.ranks if rank.number == number)
    return f"show --full {name}"


def _verdict_numbers(verdict: Verdict) -> dict[str, Value]:
    """The numbers of a verdict. Times are per step."""
    reason = verdict.reason
    return {
        "rank": verdict.rank,
        "suspect": verdict.suspect,
        "row": reason.row if reason else None,
        "phase": reason.phase if reason else None,
        "spent_ns": round(reason.spent_ns) if reason else None,
        "others_spent_ns": round(reason.others_ns) if reason else None,
        "lost_ns": round(verdict.lost_ns),
        "noise_ns": round(verdict.noise_ns),
        "waiting_ns": round(verdict.waiting_ns),
        "step_ns": round(verdict.step_ns),
    }


def _slow(verdict: Verdict) -> Iterator[str]:
    step, lost = best_time(verdict.step_ns), best_time(verdict.lost_ns)
    yield f"The others wait {lost} for it in each step of {step}."
    reason = verdict.reason
    if reason is None:
        yield (
            "No row explains most of that: it is slower in many, or does more in "
            "communication."
        )
    else:
        yield from _reason(reason)
    noise = best_time(verdict.noise_ns)
    if verdict.rank is None:
        yield f"But chance explains up to {noise}: more steps would tell."
    else:
        yield f"Up to {noise} may be chance: steps differ."


def _reason(reason: Reason) -> Iterator[str]:
    spent, others = best_time(reason.spent_ns), best_time(reason.others_ns)
    where = place_text(reason)
    if reason.is_own:
        yield f"It spends that in {where}: {spent} a step, the others {others}."
    else:
        yield f"It is slower in all of {where}: {spent} a step, the others {others}."
    yield from _inputs(reason)


def _inputs(reason: Reason) -> Iterator[str]:
    """Whether it has more work, as far as shapes tell."""
    found = reason.inputs
    if found and found.larger >= _LARGER:
        least, most = _shape(found.least), _shape(found.most)
        others = least if least == most else f"{least} to {most}"
        yield f"It has more work: {found.function} is given {_shape(found.size)} there"
        yield f"on average, {others} at the others."
    elif found and found.calls >= _LARGER * found.others_calls:
        yield f"It has more work: it calls {found.function} {found.calls:.1f} times a"
        yield f"step, the others {found.others_calls:.1f} times."
    elif not reason.is_own and found and found.larger < _AS_LARGE:
        yield f"Inputs of {found.function} are as large at the others: so it has a"
        yield "slower device, or shares its processor."
    elif not reason.is_own:
        yield "So it has more work, or a slower device."


def _shape(sizes: Sequence[float]) -> str:
    return "x".join(f"{size:.0f}" for size in sizes)


def place_text(reason: Reason) -> str:
    """``Net.head, forward``."""
    where = _PLACES.get(reason.kind, reason.row)
    if reason.kind in ("module", "function"):
        where += f", {reason.phase}" if reason.phase else ", forward and backward"
    return where


def _no_rank(verdict: Verdict) -> Iterator[str]:
    step, noise = best_time(verdict.step_ns), best_time(verdict.noise_ns)
    waiting = best_time(verdict.waiting_ns)
    share = percent(verdict.waiting_ns, verdict.step_ns)
    lost = best_time(verdict.lost_ns)
    more = "" if verdict.is_even else ": more steps would tell"
    yield (
        f"The rank with most to do makes the others wait {lost} in a step of {step}; "
        f"chance explains up to {noise}{more}."
    )
    yield (
        f"Each spends about {waiting} ({share}) in communication: what that takes, or "
        "waiting for ranks that are slow in turns."
    )


def news_line(news: News, verdict: Verdict, step: int) -> str:
    """The line to print while the program runs.

    verdict: the one that brought the news.
    step: how many steps have ended.
    """
    line = f"torchprof_hooks: step {step}: "
    if news.now is None:
        return f"{line}rank {news.before} is no longer slow"
    slow = sorted([news.now, *verdict.also])
    lost, whole = best_time(verdict.lost_ns), best_time(verdict.step_ns)
    line += f"{ranks_text(slow)} {'is' if len(slow) == 1 else 'are'} slow: "
    line += f"the others wait {lost} in each step of {whole}; "
    reason = verdict.reason
    if reason is None:
        return f"{line}no row explains most of that"
    line += "it spends that in " if reason.is_own else "it is slower in all of "
    return f"{line}{place_text(reason)} (+{best_time(reason.excess_ns)} a step)"


def _are(numbers: Sequence[int]) -> str:
    return f"{'is' if len(numbers) == 1 else 'are'} {ranks_text(numbers)}"


def ranks_text(numbers: Iterable[int]) -> str:
    """``ranks 1, 3 to 5``."""
    runs: list[str] = []
    for _, group in groupby(enumerate(numbers), lambda each: each[1] - each[0]):
        run = [number for _, number in group]
        pair = run if len(run) < 3 else [f"{run[0]} to {run[-1]}"]
        runs += map(str, pair)
    return f"rank{'s' * (runs != runs[:1] or ' ' in runs[0])} {', '.join(runs)}"


def _absent(ranks: RanksData) -> Iterator[str]:
    """Warnings about ranks whose files are old, or missing."""
    if ranks.missing:
        yield f"MISSING: there is no file of {ranks_text(ranks.missing)}."
    yield from map(_stale_text, ranks.stale)


def _stale_text(stale: StaleRank) -> str:
    how = "ended" if stale.has_ended else "wrote its file last"
    age, steps = best_time(stale.age_ns), plural(stale.steps, "step")
    return f"STALE: rank {stale.rank} {how} {age} before the newest, after {steps}."


# Tables


def _steps_table(ranks: RanksData) -> Table:
    """The mean step of each rank, by phase, with the rank's place in the dimensions of
    a device mesh."""
    shown = ranks.ranks
    times = [phase_times(rank) for rank in shown]
    phases = [phase for phase in RANK_PHASES if any(each[phase] for each in times)]
    columns = [
        *(
            Column(name, "count", [coordinates(r)[name] for r in shown], "", 0, True)
            for name in dimensions(shown)
        ),
        Column("steps", "count", [rank.steps for rank in shown], shows_zeros=True),
        _times("step", [rank.step_ns for rank in shown]),
        *(
            _times(
                PHASE_TITLES.get(phase, phase), [each[phase] for each in times], phase
            )
            for phase in phases
        ),
    ]
    return Table(
        "ranks",
        "Ranks: a step on average",
        "rank",
        [str(rank.number) for rank in shown],
        columns,
        ranks=_importance(times),
        most=_MOST_RANKS,
        tones=[_tone(ranks, rank) for rank in shown],
        left_out="{count} more ranks, which wait neither least nor most",
        notes=list(_compared(ranks)),
        drawing="stack",
    )


def _times(title: str, values: Sequence[float], name: str = "") -> Column:
    rounded = [round(ns) for ns in values]
    return Column(title, "ns", rounded, f"{name or title}_ns", shows_zeros=True)


def _importance(times: Sequence[Mapping[RankPhase, float]]) -> list[int]:
    """The importance of each rank (see `Table.ranks`): those that wait least and most
    come first, in turns."""
    waits = [each["waiting"] + each["communication"] for each in times]
    order = sorted(range(len(waits)), key=waits.__getitem__)
    found = [0] * len(order)
    for place, number in enumerate(order):
        found[number] = 2 * min(place, len(order) - 1 - place) + (
            place > len(order) - 1 - place
        )
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
        "Where ranks differ: own time in a step; skew: the worst above the median",
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
    """The files of the ranks, and the processes that wrote them."""
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
