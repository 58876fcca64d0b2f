"""The page that puts the ranks of a run side by side: who waits for whom, and where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from torchprof_hooks.profiles.names import Grouping, Phase
from torchprof_hooks.profiles.ranks.peers import coordinates, dimensions
from torchprof_hooks.profiles.ranks.rank import Rank
from torchprof_hooks.profiles.ranks.ranks import Ranks
from torchprof_hooks.profiles.ranks.skew import (
    RANK_PHASES,
    RankCollective,
    RankPhase,
    phase_times,
)
from torchprof_hooks.profiles.ranks.verdict import Reason, Verdict
from torchprof_hooks.reports.html.answers import Answer, answer_cards
from torchprof_hooks.reports.html.document import Section, document
from torchprof_hooks.reports.html.escaping import escaped
from torchprof_hooks.reports.html.phases import phase_legend, segment
from torchprof_hooks.reports.html.static_table import Column, html_table
from torchprof_hooks.reports.program.part import PHASE_TITLES
from torchprof_hooks.reports.ranks.collectives import bytes_a_call, label, rate
from torchprof_hooks.reports.ranks.sentences import (
    absent_texts,
    command_text,
    compared_text,
    place_text,
    ranks_text,
)
from torchprof_hooks.reports.ranks.text import shown_ranks, skewed_rows
from torchprof_hooks.reports.table import percent, plural
from torchprof_hooks.reports.units import best_time

#: Rows in which ranks differ, unless more are asked for.
_ROWS: Final = 40


def ranks_page(
    ranks: Ranks, by: Grouping = "module", max_rows: int | None = None
) -> str:
    """The page of the ranks of a run; a browser opens it without a network, and it
    needs no script.

    by: what the rows are (see `Profile.rows`).
    """
    command = command_text(ranks)
    hosts = len({rank.provenance.host for rank in ranks.ranks})
    subtitle = [
        f"{len(ranks.ranks)} of {plural(ranks.world_size, 'rank')}",
        plural(hosts, "host"),
        f"a step takes {best_time(ranks.verdict.step_ns)}",
    ]
    title = f"Ranks of {command}" if command else "Ranks"
    sections = _sections(ranks, by, max_rows or _ROWS)
    return document(title, " \N{MIDDLE DOT} ".join(subtitle), sections)


def _sections(ranks: Ranks, by: Grouping, max_rows: int) -> Iterator[Section]:
    warnings = "".join(
        f'<p class="warning">{escaped(text)}</p>' for text in absent_texts(ranks)
    )
    yield Section("", warnings + answer_cards(_answers(ranks.verdict)))
    yield Section("A step of each rank", _steps(ranks))
    yield Section("Where ranks differ", _differences(ranks, by, max_rows))
    if ranks.collectives:
        yield Section("What ranks exchange", _exchanged(ranks.collectives[:max_rows]))
    yield Section("Where the numbers come from", _origins(ranks.ranks))
    if ranks.notes:
        notes = "".join(f"<li>{escaped(note)}</li>" for note in ranks.notes)
        yield Section("Notes", f"<ul>{notes}</ul>")


def _answers(verdict: Verdict) -> Iterator[Answer]:
    """Which rank is slow, what that costs the others, and where it spends the time."""
    question = "Which rank do the others wait for?"
    step = best_time(verdict.step_ns)
    noise = f"Up to {best_time(verdict.noise_ns)} may be chance: steps differ."
    if verdict.rank is not None:
        also = f"{ranks_text(verdict.also)} as well. " if verdict.also else ""
        yield Answer(question, f"Rank {verdict.rank}", f"{also}{noise}")
        lost, share = best_time(verdict.lost_ns), _share(verdict.lost_ns, verdict)
        waited = f"So long do the others wait in each step of {step}."
        yield Answer("What that costs", f"{lost} ({share})", waited)
        yield _where(verdict.reason)
        return
    if not verdict.waiting_ns:
        nothing = "No rank was seen to communicate: nothing says who waits for whom."
        yield Answer(question, "Not known", nothing)
        return
    even = f"No rank waits for another beyond noise. {noise}"
    yield Answer(question, "None", even)
    waiting = f"{best_time(verdict.waiting_ns)} ({_share(verdict.waiting_ns, verdict)})"
    meaning = (
        f"Of each step of {step}: what communication takes, or waiting for ranks that "
        "are slow in turns."
    )
    yield Answer("In communication", waiting, meaning)


def _share(part_ns: float, verdict: Verdict) -> str:
    return percent(part_ns, verdict.step_ns)


def _where(reason: Reason | None) -> Answer:
    question = "Where does it spend that?"
    if reason is None:
        spread = "It is slower in many rows, or does more in communication."
        return Answer(question, "In no single row", spread)
    spent, others = best_time(reason.spent_ns), best_time(reason.others_ns)
    evidence = f"{spent} a step, the others {others}."
    if not reason.is_own:
        evidence += " It is slower in all of that: more work, or a slower device."
    return Answer(question, place_text(reason), evidence)


def _steps(ranks: Ranks) -> str:
    """A bar for each rank, as long as its step, and the same as a table."""
    shown, left_out = shown_ranks(ranks)
    times = [phase_times(rank) for rank in shown]
    kept = [phase for phase in RANK_PHASES if any(each[phase] for each in times)]
    longest_ns = max(rank.step_ns for rank in shown) or 1
    verdict = ranks.verdict
    slow = {verdict.rank, *verdict.also} - {None}
    bars = "".join(
        _bar(rank, each, kept, longest_ns, is_slow=rank.number in slow)
        for rank, each in zip(shown, times, strict=True)
    )
    legend = phase_legend((_colour(phase), _title(phase)) for phase in kept)
    more = f"<p>{left_out} more ranks wait neither least nor most.</p>" * bool(left_out)
    if compared := compared_text(ranks):
        more += f"<p>{escaped(compared)}.</p>"
    columns = [
        Column("rank", [_name(rank, rank.number in slow) for rank in shown], True),
        *(
            Column(name, [str(coordinates(rank)[name]) for rank in shown])
            for name in dimensions(shown)
        ),
        Column("steps", [str(rank.steps) for rank in shown]),
        Column("step", [best_time(rank.step_ns) for rank in shown]),
        *(
            Column(_title(phase), [best_time(each[phase]) for each in times])
            for phase in kept
        ),
    ]
    table = html_table("A step on average; own times by phase", columns)
    return f'<div class="ranks" aria-hidden="true">{bars}</div>{legend}{more}{table}'


def _bar(
    rank: Rank,
    times: dict[RankPhase, float],
    phases: Sequence[RankPhase],
    longest_ns: float,
    *,
    is_slow: bool,
) -> str:
    segments = "".join(
        segment(
            _colour(phase), f"{_title(phase)} {best_time(times[phase])}", times[phase]
        )
        for phase in phases
        if times[phase] > 0
    )
    width = f"width:{100 * rank.step_ns / longest_ns:.2f}%"
    mark = ' class="slow"' if is_slow else ""
    return (
        f"<span{mark}>{_name(rank, is_slow)}</span>"
        f'<span><span class="phases" style="{width}">{segments}</span></span>'
    )


def _name(rank: Rank, is_slow: bool) -> str:
    return f"rank {rank.number}" + ", slow" * is_slow


def _title(phase: RankPhase) -> str:
    return "all else" if phase == "other" else PHASE_TITLES[phase]


def _colour(phase: RankPhase) -> Phase:
    return "outside" if phase == "other" else phase


def _differences(ranks: Ranks, by: Grouping, max_rows: int) -> str:
    rows = skewed_rows(ranks, by)
    if not rows:
        return "<p>In no row by more than one per cent of a step.</p>"
    shown = rows[:max_rows]
    numbers = [rank.number for rank in ranks.ranks]
    columns = [
        Column(by, [row.name for row in shown], is_text=True),
        Column("phase", [row.phase for row in shown], is_text=True),
        Column("least", [best_time(row.least_ns) for row in shown]),
        Column("median", [best_time(row.median_ns) for row in shown]),
        Column("most", [best_time(row.most_ns) for row in shown]),
        Column("worst rank", [str(numbers[row.worst]) for row in shown]),
        Column("above the median", [best_time(row.skew_ns) for row in shown]),
    ]
    caption = f"Own time in a step: {len(shown)} of {plural(len(rows), 'row')}"
    return html_table(caption, columns)


def _exchanged(rows: Sequence[RankCollective]) -> str:
    """A row for each function and group."""
    columns = [
        Column("collective (group)", [label(row.sum) for row in rows], is_text=True),
        Column("calls", [str(row.sum.calls) for row in rows]),
        Column("bytes a call", [bytes_a_call(row.sum) for row in rows]),
        Column("in call", [best_time(row.median_call_ns) for row in rows]),
        Column("least wait", [best_time(row.least_ns) for row in rows]),
        Column("median", [best_time(row.median_ns) for row in rows]),
        Column("most", [best_time(row.most_ns) for row in rows]),
        Column("waits least", [f"rank {row.last_rank}" for row in rows], is_text=True),
        Column("GB/s", [rate(row.fastest) for row in rows]),
    ]
    caption = "Of a call, on average; how long ranks wait for it"
    return html_table(caption, columns)


def _origins(ranks: Sequence[Rank]) -> str:
    found = [rank.provenance for rank in ranks]
    columns = [
        Column("rank", [str(each.rank) for each in found], is_text=True),
        Column("file", [rank.name for rank in ranks], is_text=True),
        Column("host", [each.host for each in found], is_text=True),
        Column("process", [str(each.pid) for each in found]),
        Column("device", [each.device for each in found], is_text=True),
        Column("torch", [each.torch for each in found], is_text=True),
        Column("torchprof_hooks", [each.package for each in found], is_text=True),
    ]
    return html_table("Files of ranks", columns)
