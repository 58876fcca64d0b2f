"""What one wants to know first: which module, forward or backward, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from torchprof_hooks.profiles.names import MODULE_PHASES
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.reports.hottest import (
    COLD,
    Hottest,
    busy_device,
    device_times_ns,
    hottest,
)
from torchprof_hooks.reports.html.escaping import escaped
from torchprof_hooks.reports.html.numbers import count_text, share_text, time_text
from torchprof_hooks.reports.program.part import OTHER, PHASE_TITLES, shown_times_ns
from torchprof_hooks.reports.source import Source
from torchprof_hooks.reports.table import plural


class Answer(NamedTuple):
    """A question, the answer in a few words, and what it rests on."""

    question: str
    answer: str
    evidence: str


def answers(source: Source) -> Iterator[Answer]:
    """The answers to the three questions, as far as they are known."""
    rows = [row for row in source.rows("module") if row.kind == "module"]
    first = hottest(rows, busy_device(source.modules))
    if first is not None:
        share = share_text(first.own_ns, _whole_ns(source.modules))
        answer = f"{_counted(first)}{first.name} ({share})"
        question = f"Hottest module{_on(source.modules)}"
        yield Answer(question, answer, _itself(first))
    yield from _direction(source.modules)
    yield _advice(source)


def _on(profile: Profile) -> str:
    """`` on cuda``, where times are those of a busy device."""
    device = busy_device(profile)
    return f" on {device}" * bool(device)


def _whole_ns(profile: Profile) -> int:
    """What shares are shares of."""
    if busy_device(profile):
        return device_times_ns(profile).total()
    return profile.wall_ns


def _direction(profile: Profile) -> Iterator[Answer]:
    """The phase of modules that takes most, and what the others take."""
    is_busy = bool(busy_device(profile))
    times = device_times_ns(profile) if is_busy else shown_times_ns(profile)
    wall_ns = _whole_ns(profile)
    shares = {
        phase: f"{PHASE_TITLES[phase].removeprefix(OTHER)} "
        f"{share_text(phase_ns, wall_ns)}"
        for phase, phase_ns in times.most_common()
        if phase_ns > 0
    }
    first = next((phase for phase in shares if phase in MODULE_PHASES), None)
    if first is None:
        return
    share = share_text(times[first], wall_ns)
    rest = ", ".join(text for phase, text in shares.items() if phase != first)
    evidence = f"{first} takes {share} of the time" + (f"; {rest}" if rest else "")
    yield Answer(
        f"Forward or backward{_on(profile)}?",
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
    """Long names may go on in another line behind their dots."""
    return re.sub(r"\.(?=\D)", ".<wbr>", escaped(name))


def _counted(found: Hottest) -> str:
    """``12 Linear: ``, of one module nothing."""
    count = len(found.rows)
    return f"{count_text(count)} {found.kind.class_name}: " * (count > 1)


def _itself(found: Hottest) -> str:
    """``Own time of Linear, without inner modules: forward ...``."""
    own = found.own_times_ns()
    parts = ", ".join(f"{phase} {time_text(ns)}" for phase, ns in own.items())
    if len(found.rows) == 1:
        return f"Own time of {found.kind.class_name}, without inner modules: {parts}"
    each = " Each has a number in place of the *." * ("*" in found.name)
    return f"Own time of all of them, without inner modules: {parts}.{each}"


def _advice(source: Source) -> Answer:
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
    first = hottest(rows, busy_device(source.modules))
    if first is None:
        return Answer(question, "Nothing to say", "Nothing was called.")
    share = share_text(first.own_ns, _whole_ns(source.modules))
    return Answer(
        question,
        f"Look at {first.name} first",
        f"It takes the most time itself, {share}. None of the usual troubles was "
        "found, so there is no tip.",
    )
