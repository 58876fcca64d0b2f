"""The page that puts the ranks of a run side by side: who waits for whom, and where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from torchprof_hooks.profiles.names import Grouping, Phase
from torchprof_hooks.profiles.ranks.rank import Rank
from torchprof_hooks.profiles.ranks.ranks import Ranks
from torchprof_hooks.profiles.ranks.skew import RankPhase
from torchprof_hooks.profiles.ranks.verdict import Verdict
from torchprof_hooks.reports.hottest import Answer
from torchprof_hooks.reports.html.document import (
    Section,
    answer_cards,
    bullets,
    document,
    html_table,
    paragraphs,
)
from torchprof_hooks.reports.html.phases import phase_legend, segment
from torchprof_hooks.reports.program.part import PHASE_TITLES
from torchprof_hooks.reports.ranks.collectives import EXCHANGED, exchanged_table
from torchprof_hooks.reports.ranks.sentences import (
    absent_texts,
    command_text,
    compared_text,
    sentences,
)
from torchprof_hooks.reports.ranks.text import (
    counted_text,
    is_slow,
    shown_ranks,
    skew_table,
    skewed_rows,
    step_table,
    times_by_phase,
)
from torchprof_hooks.reports.table import Table, TextColumn, plural
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
    title = f"Ranks of {command}" if command else "Ranks"
    sections = _sections(ranks, by, max_rows or _ROWS)
    return document(title, counted_text(ranks), sections)


def _sections(ranks: Ranks, by: Grouping, max_rows: int) -> Iterator[Section]:
    warnings = paragraphs(absent_texts(ranks), "warning")
    yield Section("", warnings + answer_cards(_answers(ranks.verdict)))
    yield Section("A step of each rank", _steps(ranks))
    yield Section("Where ranks differ", _differences(ranks, by, max_rows))
    if ranks.collectives:
        table = exchanged_table(ranks.collectives[:max_rows])
        yield Section("What ranks exchange", html_table(EXCHANGED, table))
    yield Section("Where the numbers come from", _origins(ranks.ranks))
    if ranks.notes:
        yield Section("Notes", bullets(ranks.notes))


def _answers(verdict: Verdict) -> Iterator[Answer]:
    """Which rank is slow, what that costs the others, and where it spends the time."""
    first, *others = sentences(verdict)
    yield Answer("Which rank do the others wait for?", first, " ".join(others))


def _steps(ranks: Ranks) -> str:
    """A bar for each rank, as long as its step, and the same as a table."""
    shown, left_out = shown_ranks(ranks)
    times = times_by_phase(shown)
    longest_ns = max(rank.step_ns for rank in shown) or 1
    bars = "".join(
        _bar(
            rank,
            {phase: of_ranks[place] for phase, of_ranks in times.items()},
            rank.step_ns / longest_ns,
            is_slow=is_slow(ranks, rank),
        )
        for place, rank in enumerate(shown)
    )
    legend = phase_legend((_colour(phase), _title(phase)) for phase in times)
    more = [f"{left_out} more ranks wait neither least nor most."] * bool(left_out)
    if compared := compared_text(ranks):
        more.append(f"{compared}.")
    table = html_table("A step on average; own times by phase", step_table(shown))
    below = legend + paragraphs(more) + table
    return f'<div class="ranks" aria-hidden="true">{bars}</div>{below}'


def _bar(
    rank: Rank, times: Mapping[RankPhase, float], length: float, *, is_slow: bool
) -> str:
    segments = "".join(
        segment(_colour(phase), f"{_title(phase)} {best_time(phase_ns)}", phase_ns)
        for phase, phase_ns in times.items()
        if phase_ns > 0
    )
    mark, text = (' class="slow"', ", slow") if is_slow else ("", "")
    return (
        f"<span{mark}>rank {rank.number}{text}</span>"
        f'<span><span class="phases" style="width:{100 * length:.2f}%">'
        f"{segments}</span></span>"
    )


def _title(phase: RankPhase) -> str:
    return "all else" if phase == "other" else PHASE_TITLES[phase]


def _colour(phase: RankPhase) -> Phase:
    return "outside" if phase == "other" else phase


def _differences(ranks: Ranks, by: Grouping, max_rows: int) -> str:
    rows = skewed_rows(ranks, by)
    if not rows:
        return paragraphs(["In no row by more than one per cent of a step."])
    table = skew_table(ranks, rows[:max_rows])
    shown = f"{len(table.labels) - 1} of {plural(len(rows), 'row')}"
    caption = f"Own time in a step: {shown}; skew: the worst above the median"
    return html_table(caption, table)


def _origins(ranks: Sequence[Rank]) -> str:
    found = [rank.provenance for rank in ranks]
    columns = {
        "file": [rank.name for rank in ranks],
        "host": [each.host for each in found],
        "process": [str(each.pid) for each in found],
        "device": [each.device for each in found],
        "torch": [each.torch for each in found],
        "torchprof_hooks": [each.package for each in found],
    }
    labels = ["rank", *(str(each.rank) for each in found)]
    words = [TextColumn(*column, is_words=True) for column in columns.items()]
    return html_table("Files of ranks", Table(labels, words))
