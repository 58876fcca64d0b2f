"""Steps over time, which of them were slow, and what these did differently."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from torchprof_hooks.documents.build.view import View
from torchprof_hooks.documents.document import Answer, Column, Table, Value
from torchprof_hooks.documents.render.units import best_time
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.phases import PHASE_TITLES
from torchprof_hooks.profiles.step_history import PhaseOfStep, SlowStep, Stretch
from torchprof_hooks.profiles.step_times import LEAST_MORE_NS, SLOW

#: Slow steps are printed if together, they took such a share of the time more than
#: usual; or if one took so many times as long as usual, and so much longer.
LEAST_SHARE: Final = 0.01
_MANY_TIMES: Final = 3
_MUCH_LONGER_NS: Final = 50_000_000
#: The first steps are slow as a rule, as much is done for the first time: they are
#: printed beside others, or if one took so many times as long.
WARM_UP: Final = 3
#: What a phase took more than usual is printed if it is such a part of the difference,
#: of at most so many phases.
_LEAST_PART: Final = 0.1
_MOST_PHASES: Final = 2


def printed_steps(view: View) -> tuple[SlowStep, ...]:
    """The slowest steps, if they matter."""
    found = view.profile.slow_steps
    count, more_ns = view.profile.step_times.slow_steps()
    if not (found and count):
        return ()
    is_much = more_ns >= LEAST_SHARE * view.shown.wall_ns
    is_told = is_much and not all(map(_warms_up, found))
    return found if is_told or _is_long(found[0]) else ()


def _warms_up(step: SlowStep) -> bool:
    return step.number <= WARM_UP and not _is_long(step)


def _is_long(step: SlowStep) -> bool:
    is_longer = step.more_ns >= _MUCH_LONGER_NS
    return is_longer and step.duration_ns >= _MANY_TIMES * step.usual_ns


def slow_answer(view: View) -> Answer | None:
    """How many steps were slow, and why the slowest was that did not warm up."""
    steps = printed_steps(view)
    if not steps:
        return None
    times = view.profile.step_times
    worst = next((step for step in steps if not _warms_up(step)), steps[0])
    count, more_ns = times.slow_steps()
    are_many = count > 1
    numbers: dict[str, Value] = {
        "slow_steps": count,
        "steps": times.later_steps,
        "more_ns": round(more_ns),
        "step": worst.number,
        "step_ns": worst.duration_ns,
        "usual_ns": worst.usual_ns,
        **{f"{each.phase}_more_ns": each.more_ns for each in worst.phases},
        "module": worst.module,
        "module_more_ns": worst.module_ns - worst.module_usual_ns,
    }
    return Answer(
        "slow_steps",
        "Slow steps",
        f"{count} of {times.later_steps}, +{best_time(more_ns)}" + " in all" * are_many,
        more_ns / max(view.shown.wall_ns, 1),
        evidence=_evidence(view, worst) if are_many else step_text(worst),
        numbers=numbers,
    )


def _evidence(view: View, worst: SlowStep) -> str:
    """The phase that has most of what slow steps took more than usual, if one has."""
    more = phases_of_slow(view)
    for phase, ns in more.items():
        if 2 * ns > more.total():
            slowest = f"step {worst.number}, +{best_time(worst.more_ns)}"
            return f"mostly {PHASE_TITLES[phase]}; slowest: {slowest}"
    return f"slowest {step_text(worst)}"


def step_text(step: SlowStep) -> str:
    """``step 812: 410.00ms, usual 96.00ms: data loading +302.00ms``."""
    took = f"{best_time(step.duration_ns)}, usual {best_time(step.usual_ns)}"
    return ": ".join(filter(None, [f"step {step.number}", took, _differences(step)]))


def _differences(step: SlowStep) -> str:
    """``data loading +302.00ms, forward +10.00ms (Net.head +9.00ms)``."""
    longer = _longer(step)[:_MOST_PHASES]
    found = [f"{PHASE_TITLES[p.phase]} +{best_time(p.more_ns)}" for p in longer]
    own = f" (own time of {step.module})" if step.module else ""
    return ", ".join(found) + own


def _longer(step: SlowStep) -> list[PhaseOfStep]:
    least_ns = _LEAST_PART * step.more_ns
    return [each for each in step.phases if each.more_ns >= max(least_ns, 1)]


def phases_of_slow(view: View) -> Counter[Phase]:
    """What phases took more than usual in the slow steps that are printed."""
    found = Counter[Phase]()
    for step in printed_steps(view):
        found.update({each.phase: each.more_ns for each in _longer(step)})
    return found


def slow_table(view: View) -> Iterator[Table]:
    """The slowest steps, with what each phase took more than usual."""
    steps = printed_steps(view)
    if not steps:
        return
    named = {each.phase for step in steps for each in _longer(step)}
    more = [{str(p.phase): p.more_ns for p in step.phases} for step in steps]
    count, _ = view.profile.step_times.slow_steps()
    columns = [
        Column("took", "ns", [step.duration_ns for step in steps], "duration_ns"),
        Column("usual", "ns", [step.usual_ns for step in steps], "usual_ns"),
        *(
            Column(
                title,
                "ns",
                [each.get(phase) for each in more],
                f"{phase}_more_ns",
                is_detail=phase not in named,
            )
            for phase, title in PHASE_TITLES.items()
            if any(phase in each for each in more)
        ),
        Column("own time of", "text", [step.module for step in steps], "module", 1),
    ]
    yield Table(
        "slow_steps",
        "Slow steps: what took longer than usual",
        "step",
        [f"step {step.number}" for step in steps],
        [column for column in columns if any(column.values)],
        names=[str(step.number) for step in steps],
        notes=[f"the slowest of {count} slow steps"] if count > len(steps) else (),
    )


def steps_over_time(profile: ProfileData) -> Iterator[Table]:
    """The steps after the first in the order of time, with slow ones marked."""
    stretches, times = [*profile.step_history.stretches], profile.step_times
    if len(stretches) < 2:
        return
    firsts, slow_ns = [each.first for each in stretches], times.slow_ns
    texts = _slow_texts(profile, firsts)
    count, _ = times.slow_steps()
    note = (
        f"{count} of {times.later_steps} steps after the first were slow (red): longer "
        f"than {SLOW:g} times the median, by {best_time(LEAST_MORE_NS)} or more"
    )
    legend = "a bar with a gap near its top is longer than it is drawn"
    if any(each.steps > 1 for each in stretches):
        legend += "; of several steps, it is dark up to their mean"
    yield Table(
        "steps",
        "Steps over time",
        "steps",
        [_stretch_label(each) for each in stretches],
        [
            Column("mean", "ns", [s.total_ns / s.steps for s in stretches], "mean_ns"),
            Column("longest", "ns", [s.longest_ns for s in stretches], "longest_ns"),
            Column("slow", "text", [texts.get(first, "") for first in firsts], "slow"),
            Column("first", "count", firsts, "first_step", is_detail=True),
            Column("steps", "count", [s.steps for s in stretches], is_detail=True),
        ],
        tones=["slow" if 0 < slow_ns < s.longest_ns else "" for s in stretches],
        notes=[note, legend] if slow_ns else [legend],
        drawing="steps",
        is_detail=True,
    )


def _stretch_label(each: Stretch) -> str:
    last = each.first + each.steps - 1
    return f"step {last}" if each.steps == 1 else f"steps {each.first} to {last}"


def _slow_texts(profile: ProfileData, firsts: list[int]) -> dict[int, str]:
    """A text about the slow steps of each stretch, by its first step."""
    found = defaultdict[int, list[str]](list)
    for step in sorted(profile.slow_steps, key=lambda step: step.number):
        place = bisect_right(firsts, step.number)
        found[firsts[max(place - 1, 0)]].append(step_text(step))
    return {first: "; ".join(texts) for first, texts in found.items()}
