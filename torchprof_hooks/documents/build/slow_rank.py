"""What is said of the rank that the others wait for."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Final

from torchprof_hooks.documents.document import Answer, Value
from torchprof_hooks.documents.render.units import best_time
from torchprof_hooks.documents.words import percent
from torchprof_hooks.profiles.phases import PHASE_TITLES
from torchprof_hooks.profiles.ranks.ranks import RanksData
from torchprof_hooks.profiles.ranks.verdict import Reason, Verdict, find_turns

#: Other waiting is printed if it is such a share of a step.
_MUCH: Final = 0.2
_PLACES: Final[Mapping[str, str]] = {
    "outside": "the program's own code, outside modules",
    "data": "data loading",
}


def slow_rank_answer(ranks: RanksData) -> Answer:
    """Which rank the others wait for, if any, and why."""
    verdict = ranks.verdict
    share = None
    next_step = ""
    if verdict.rank is not None:
        are = "is" if len(verdict.also) == 1 else "are"
        also = f" (and so {are} {ranks_text(verdict.also)})" if verdict.also else ""
        answer = f"Rank {verdict.rank} is slow{also}"
        evidence = " ".join(_slow(verdict))
        share = verdict.lost_ns / max(verdict.step_ns, 1)
        next_step = f"show --full {shlex.quote(ranks.path_of(verdict.rank))}"
    elif not verdict.waiting_ns:
        answer = "No rank was seen to communicate"
        evidence = "Nothing says who waits for whom."
    else:
        answer = "Even" if verdict.is_even else "Cannot tell"
        evidence = " ".join([*_no_rank(verdict), *_in_turns(ranks)])
    return Answer(
        "slow_rank",
        "Who waits for whom",
        answer,
        share,
        None,
        evidence,
        _verdict_numbers(verdict),
        next_step,
    )


def _verdict_numbers(verdict: Verdict) -> dict[str, Value]:
    """The numbers of a verdict. Times are per step."""
    reason = verdict.reason
    return {
        "rank": verdict.rank,
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
            "No module explains most of that: it is slower in many, or does more in "
            "communication."
        )
    else:
        yield from _reason(reason)
    noise = best_time(verdict.noise_ns)
    if verdict.waiting_ns - verdict.lost_ns > _MUCH * verdict.step_ns:
        rest = best_time(verdict.waiting_ns - verdict.lost_ns)
        yield f"They exchange or wait for another {rest}, which is not for this rank."
    yield f"Up to {noise} may be chance: steps differ."


def _reason(reason: Reason) -> Iterator[str]:
    spent, others = best_time(reason.spent_ns), best_time(reason.others_ns)
    where = _place_text(reason)
    if reason.is_own:
        yield f"It spends that in {where}: {spent} a step, the others {others}."
    else:
        yield f"It is slower in all of {where}: {spent} a step, the others {others}."
        yield "So it has more work there, or a slower device."


def _place_text(reason: Reason) -> str:
    """``Net.head, forward``."""
    where = _PLACES.get(reason.kind, reason.row)
    if reason.kind in ("module", "function"):
        where += f", {reason.phase or 'in all phases'}"
    return where


def _no_rank(verdict: Verdict) -> Iterator[str]:
    step, noise = best_time(verdict.step_ns), best_time(verdict.noise_ns)
    waiting = best_time(verdict.waiting_ns)
    share = percent(verdict.waiting_ns, verdict.step_ns)
    lost = best_time(verdict.lost_ns)
    more = "" if verdict.is_even else ": more steps would tell"
    yield (
        f"Rank {verdict.busiest} has most to do, and makes others wait {lost} in a "
        f"step of {step}; chance explains up to {noise}{more}."
    )
    yield (
        f"Each spends about {waiting} ({share}) in communication: what that takes, or "
        "waiting for ranks that are slow in turns."
    )


def _in_turns(ranks: RanksData) -> Iterator[str]:
    """Ranks that are held up one after the other."""
    turns = find_turns(ranks.ranks)
    if turns is None:
        return
    every = len(turns.ranks) == len(ranks.ranks)
    who = "each rank is" if every else f"{ranks_text(turns.ranks)} are each"
    steps = max(rank.steps for rank in ranks.ranks)
    took = f"{'at least ' * turns.is_least}{best_time(turns.more_ns)}"
    share, title = percent(turns.steps, steps), PHASE_TITLES[turns.phase]
    yield (
        f"{who[0].upper()}{who[1:]} held up in other steps, mostly by {title}: {took} "
        f"in {share} of steps."
    )


def ranks_text(numbers: Iterable[int]) -> str:
    """``ranks 1, 3 to 5``."""
    runs: list[str] = []
    for _, group in groupby(enumerate(numbers), lambda each: each[1] - each[0]):
        run = [number for _, number in group]
        pair = run if len(run) < 3 else [f"{run[0]} to {run[-1]}"]
        runs += map(str, pair)
    return f"rank{'s' * (runs != runs[:1] or ' ' in runs[0])} {', '.join(runs)}"
