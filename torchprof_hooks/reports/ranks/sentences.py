"""What is said of ranks, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from torchprof_hooks.profiles.ranks.ranks import Ranks, StaleRank
from torchprof_hooks.profiles.ranks.verdict import Reason, Verdict
from torchprof_hooks.reports.table import percent, plural, shorten
from torchprof_hooks.reports.units import best_time

#: Characters of a command in titles.
_LONGEST_COMMAND: Final = 60

_OTHER_NAMES: Final = {
    "outside": "the program's own code, outside of modules",
    "data": "data loading",
}


def verdict_text(verdict: Verdict) -> str:
    """The verdict in words."""
    return " ".join(sentences(verdict))


def sentences(verdict: Verdict) -> Iterator[str]:
    """The sentences of the verdict, one after the other."""
    step, noise = best_time(verdict.step_ns), best_time(verdict.noise_ns)
    if verdict.rank is not None:
        lost = best_time(verdict.lost_ns)
        share = percent(verdict.lost_ns, verdict.step_ns)
        also = f" (and so {_are(verdict.also)})" if verdict.also else ""
        yield (
            f"Rank {verdict.rank} is slow{also}: the others wait {lost} for it in each "
            f"step of {step} ({share})."
        )
        yield from _reason(verdict.reason)
        yield f"Up to {noise} may be chance: steps differ."
    elif not verdict.waiting_ns:
        yield "No rank was seen to communicate: nothing says who waits for whom."
    else:
        waiting = best_time(verdict.waiting_ns)
        share = percent(verdict.waiting_ns, verdict.step_ns)
        yield (
            f"Even: no rank waits for another beyond noise ({noise} in a step of "
            f"{step})."
        )
        yield (
            f"Each spends about {waiting} ({share}) in communication: what that takes, "
            "or waiting for ranks that are slow in turns."
        )


def _reason(reason: Reason | None) -> Iterator[str]:
    if reason is None:
        yield (
            "No row explains most of that: it is slower in many, or does more in "
            "communication."
        )
        return
    where = place_text(reason)
    spent, others = best_time(reason.spent_ns), best_time(reason.others_ns)
    if reason.is_own:
        yield f"It spends that in {where}: {spent} a step, the others {others}."
    else:
        yield f"It is slower in all of {where}: {spent} a step, the others {others}."
        yield "So it has more work, or a slower device."


def place_text(reason: Reason) -> str:
    """``Net.head, forward``."""
    where = _OTHER_NAMES.get(reason.kind, reason.row)
    if reason.kind in ("module", "function"):
        where += f", {reason.phase}" if reason.phase else ", forward and backward"
    return where


def _are(numbers: Sequence[int]) -> str:
    verb = "is" if len(numbers) == 1 else "are"
    return f"{verb} {ranks_text(numbers)}"


def ranks_text(numbers: Iterable[int]) -> str:
    """``ranks 1, 3 to 5``."""
    runs: list[str] = []
    for _, group in groupby(enumerate(numbers), lambda each: each[1] - each[0]):
        run = [number for _, number in group]
        pair = run if len(run) < 3 else [f"{run[0]} to {run[-1]}"]
        runs += map(str, pair)
    return f"rank{'s' * (runs != runs[:1] or ' ' in runs[0])} {', '.join(runs)}"


def command_text(ranks: Ranks) -> str:
    """What was run, as far as it fits into a title: some launchers give hundreds of
    characters of arguments."""
    return shorten(ranks.ranks[0].provenance.command, _LONGEST_COMMAND)


def compared_text(ranks: Ranks) -> str:
    """Which ranks are compared with each other, "" if all are."""
    if len(ranks.peers) == 1:
        return ""
    groups = "; ".join(
        ranks_text([ranks.ranks[place].number for place in group]).split(" ", 1)[1]
        for group in ranks.peers
    )
    return f"Compared with each other, for they do the same: {groups}"


def absent_texts(ranks: Ranks) -> Iterator[str]:
    """Warnings about ranks whose files are old, or missing."""
    if ranks.missing:
        yield f"MISSING: there is no file of {ranks_text(ranks.missing)}."
    for stale in ranks.stale:
        yield _stale_text(stale)


def _stale_text(stale: StaleRank) -> str:
    how = "ended" if stale.has_ended else "wrote its file last"
    age, steps = best_time(stale.age_ns), plural(stale.steps, "step")
    return f"STALE: rank {stale.rank} {how} {age} before the newest, after {steps}."
