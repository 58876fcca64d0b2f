"""What a report says first: how long was measured, how many steps, and what measuring
took."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.step_times import StepTimes
from torchprof_hooks.reports.hottest import LEAST_ASKED
from torchprof_hooks.reports.table import percent, plural
from torchprof_hooks.reports.units import best_count_format, best_time

#: Why calls may be missing from a profile.
OTHER_THREADS: Final = (
    "profile() measures the thread that enters it: other threads need one of their own."
)

#: If a device waited at this share of begins and ends of calls, the report says so.
_MOSTLY: Final = 0.75


def header(profile: Profile) -> str:
    """The header in one line."""
    attributed = percent(profile.attributed_ns, profile.wall_ns)
    functions = ", functions," if profile.has_functions else " and"
    facts = [
        *rank_texts(profile),
        measured_text(profile),
        *step_texts(profile),
        f"{attributed} in modules{functions} optimizers",
        *filter(None, [device_text(profile)]),
        *cost_texts(profile),
    ]
    return "torchprof_hooks: " + ", ".join(facts)


def rank_texts(profile: Profile) -> Iterator[str]:
    """Which process this is: ``rank 0 of 4``; nothing if it is the only one, or if
    profiles of several were merged."""
    if len(profile.provenance) == 1 and profile.provenance[0].world_size > 1:
        (process,) = profile.provenance
        yield f"rank {process.rank} of {process.world_size}"


def nothing_text(profile: Profile) -> str:
    """Why there are no tables, in one or two lines. Whether other threads have called
    modules is not known: to see that would cost each of their calls."""
    if profile.unmeasured_steps and not profile.steps:
        return "No step was looked into: there is nothing to report."
    return f"No module was called: there is nothing to report.\n{OTHER_THREADS}"


def measured_text(profile: Profile) -> str:
    """How long was measured: ``2.00sec wall``."""
    whole_ns = profile.wall_ns + profile.unmeasured_ns
    wall = best_time(profile.wall_ns)
    if not profile.unmeasured_ns:
        return f"{wall} wall"
    share = percent(profile.wall_ns, whole_ns)
    return f"{wall} of {best_time(whole_ns)} measured ({share})"


def step_texts(profile: Profile) -> Iterator[str]:
    """How many steps and evaluation calls, and how long these were."""
    times = profile.step_times
    if profile.steps or times.steps:
        steps = plural(profile.steps, "step")
        if profile.unmeasured_ns:
            every = profile.steps + profile.unmeasured_steps
            steps = f"{profile.steps} of {every} steps"
        yield f"{steps}{_step_durations(profile)}"
        if profile.items:
            yield f"{best_count_format(profile.items_per_second)} items per second"
    if times.evaluations:
        calls = plural(times.evaluations, "evaluation call")
        yield f"{calls}{_evaluation_durations(times)}"


def _evaluation_durations(times: StepTimes) -> str:
    """The duration of evaluation calls, as text to follow after their number. The call
    with which a run begins includes the start-up, and is given apart."""
    mean = best_time(times.evaluation_mean_ns)
    if not times.first_evaluations:
        return f" of {mean}"
    if not times.later_evaluations:
        return f" of {mean} with the start-up"
    return f": first {best_time(times.first_evaluation_mean_ns)}, then {mean}"


def _step_durations(profile: Profile) -> str:
    """The duration of training steps, as text to follow after their number."""
    times = profile.step_times
    if not times.steps:  # files of old versions have none
        return f" of {best_time(profile.wall_ns / profile.steps)}"
    first, mean = best_time(times.first_mean_ns), best_time(times.mean_ns)
    if not times.later_steps:
        return f" of {first}"
    half, most = best_time(times.quantile_ns(0.5)), best_time(times.quantile_ns(0.9))
    spread = f"{mean} (median {half}, 90 % within {most})"
    if not times.first_steps:
        return f" of {spread}"
    return f": first {first}, then {spread}"


def cost_texts(profile: Profile, *, has_start_up: bool = False) -> Iterator[str]:
    """What measuring took, and what is not as usual.

    has_start_up: whether all else that is said is about the loop, without the start-up.
    """
    overhead = percent(profile.overhead_ns, profile.wall_ns + profile.unmeasured_ns)
    # The row for measuring, in tables about less than all, has another share.
    of_all = " of all" * bool(has_start_up or profile.unmeasured_ns)
    of_all += ", the start-up included" * has_start_up
    yield f"measuring took about {overhead}{of_all}{core_of(profile)}"
    if profile.aborted_calls:
        yield f"{plural(profile.aborted_calls, 'call')} ended by an exception"
    if profile.undivided_passes:
        passes = plural(profile.undivided_passes, "backward pass", "backward passes")
        yield f"{passes} over nodes of several threads not divided"


def device_text(profile: Profile) -> str:
    """A warning if the device mostly waited for the host, so that its times are those
    of the host; "" if not."""
    asked, waits = profile.device_asked, profile.device_waits
    if asked < LEAST_ASKED or waits < _MOSTLY * asked:
        return ""
    return (
        f"{', '.join(profile.devices)} waited for the host at {percent(waits, asked)} "
        "of the begins and ends of calls: its times are mostly waiting"
    )


def core_of(profile: Profile) -> str:
    """The core that has measured, in brackets."""
    if not profile.core or profile.core == "native":
        return " (native core)" if profile.core else ""
    reason = f": {profile.core_reason}" if profile.core_reason else ""
    return f" ({profile.core} core{reason})"
