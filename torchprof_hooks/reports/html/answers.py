"""What one wants to know first: which module, forward or backward, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from torchprof_hooks.profiles.names import MODULE_PHASES
from torchprof_hooks.reports.hottest import (
    COLD,
    Hottest,
    Shares,
    hottest,
    shares_of,
)
from torchprof_hooks.reports.html.escaping import escaped
from torchprof_hooks.reports.program.part import OTHER, PHASE_TITLES
from torchprof_hooks.reports.source import Source
from torchprof_hooks.reports.table import percent, plural
from torchprof_hooks.reports.units import best_time


class Answer(NamedTuple):
    """A question, the answer in a few words, and what it rests on."""

    question: str
    answer: str
    evidence: str


def answers(source: Source) -> Iterator[Answer]:
    """The answers to the three questions, as far as they are known."""
    shares = shares_of(source.modules)
    rows = [row for row in source.rows("module") if row.kind == "module"]
    first = hottest(rows, shares.device)
    if first is not None:
        share = percent(first.own_ns, shares.whole_ns)
        answer = f"{_counted(first)}{first.name} ({share})"
        question = f"Hottest module{shares.on_device}"
        yield Answer(question, answer, _itself(first))
    yield from _direction(shares)
    yield _advice(source, shares)


def _direction(by: Shares) -> Iterator[Answer]:
    """The phase of modules that takes most, and what the others take."""
    _, times, whole_ns = by
    shares = {
        phase: f"{PHASE_TITLES[phase].removeprefix(OTHER)} "
        f"{percent(phase_ns, whole_ns)}"
        for phase, phase_ns in times.most_common()
        if phase_ns > 0
    }
    first = next((phase for phase in shares if phase in MODULE_PHASES), None)
    if first is None:
        return
    share = percent(times[first], whole_ns)
    rest = ", ".join(text for phase, text in shares.items() if phase != first)
    evidence = f"{first} takes {share} of the time" + (f"; {rest}" if rest else "")
    yield Answer(
        f"Forward or backward{by.on_device}?",
        f"{first.capitalize()} ({share})",
        evidence,
    )


def answer_cards(found: Iterator[Answer]) -> str:
    """The answers side by side."""
    cards = (
        f'<div class="card"><h2>{escaped(each.question)}</h2>'
        f'<p class="answer">{_breakable(each.answer)}</p>'
        f"<p>{escaped(each.evidence)}</p></div>"
        for each in found
    )
    return f'<section class="cards" aria-label="Summary">{"".join(cards)}</section>'


def _breakable(name: str) -> str:
    """The name as HTML, in which a line may break after each dot."""
    return re.sub(r"\.(?=\D)", ".<wbr>", escaped(name))


def _counted(found: Hottest) -> str:
    """``12 Linear: ``; "" for a single module."""
    count = len(found.rows)
    return f"{count} {found.kind.class_name}: " * (count > 1)


def _itself(found: Hottest) -> str:
    """``Own time of Linear, without inner modules: forward ...``."""
    own = found.own_times_ns()
    parts = ", ".join(f"{phase} {best_time(ns)}" for phase, ns in own.items())
    if len(found.rows) == 1:
        return f"Own time of {found.kind.class_name}, without inner modules: {parts}"
    each = " Each has a number in place of the *." * ("*" in found.name)
    return f"Own time of all of them, without inner modules: {parts}.{each}"


def _advice(source: Source, by: Shares) -> Answer:
    """The first tip; without one, where to look."""
    question = "What to do"
    if source.tips:
        claim, remedy = source.tips[0]
        more = len(source.tips) - 1
        others = f" ({plural(more, 'more tip')} below)" if more else ""
        if not remedy:
            return Answer(question, "Look here first", f"{claim}{others}")
        if remedy.partition(" ")[0].isalpha():  # no code
            remedy = remedy[0].upper() + remedy[1:]
        return Answer(question, remedy, f"{claim}.{others}")
    rows = [row for row in source.rows("module") if row.kind not in COLD]
    first = hottest(rows, by.device)
    if first is None:
        return Answer(question, "Nothing to say", "Nothing was called.")
    share = percent(first.own_ns, by.whole_ns)
    return Answer(
        question,
        f"Look at {first.name} first",
        f"It takes the most time itself, {share}. None of the usual troubles was "
        "found, so there is no tip.",
    )
