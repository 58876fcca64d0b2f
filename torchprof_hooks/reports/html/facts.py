"""What was measured, and how."""

from __future__ import annotations

from collections.abc import Iterator

from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.reports.header import device_text, of_all_text, rank_texts
from torchprof_hooks.reports.source import Source
from torchprof_hooks.reports.table import percent
from torchprof_hooks.reports.units import best_time
from torchprof_hooks.version import __version__

Fact = tuple[str, str]


def headline(source: Source) -> str:
    """What was measured, in one line."""
    profile, shown = source.measured, source.modules
    measured = f"{best_time(shown.wall_ns)} measured"
    count = shown.steps or shown.step_times.steps
    if source.start_up:
        start_up = f"{best_time(source.start_up.wall_ns)} start-up"
        end, after = source.end_of_start_up, best_time(shown.wall_ns)
        measured = f"{start_up} with {end}, then {after}"
        count = source.step_times.steps
    parts = [*rank_texts(profile), measured]
    if count:
        parts.append(f"{count} training steps")
    if shown.step_times.evaluations:
        parts.append(f"{shown.step_times.evaluations} evaluation calls")
    whole_ns = profile.wall_ns + profile.unmeasured_ns
    cost = percent(profile.overhead_ns, whole_ns)
    of_all = of_all_text(profile, source.start_up is not None)
    parts.append(f"measuring took about {cost}{of_all}")
    if profile.core:
        parts.append(f"{profile.core} core")
    return " \N{MIDDLE DOT} ".join(parts)


def facts(source: Source) -> Iterator[Fact]:
    """All that is known of how it was measured."""
    profile = source.measured
    whole_ns = profile.wall_ns + profile.unmeasured_ns
    yield "Measured time", best_time(profile.wall_ns)
    if profile.unmeasured_ns:
        steps = f"{profile.unmeasured_steps} steps"
        yield "Not measured", f"{best_time(profile.unmeasured_ns)}, {steps}"
    if source.start_up:
        yield (
            "Start-up",
            f"{best_time(source.start_up.wall_ns)}, all until {source.end_of_start_up} "
            "had ended; it is a column of the phases, and in no other number here",
        )
    shown = source.modules
    attributed = percent(shown.attributed_ns, shown.wall_ns)
    yield "Attributed", f"{attributed} is in modules, functions and optimizers"
    own = f"{best_time(profile.overhead_ns)}, {percent(profile.overhead_ns, whole_ns)}"
    of_all = of_all_text(profile, source.start_up is not None) or " of the time"
    yield "Own cost", f"about {own}{of_all}"
    yield "Core", _core(profile)
    yield from _exceptions(source)
    yield "Version", f"torchprof_hooks {__version__}"


def _core(profile: Profile) -> str:
    name = profile.core or "not known"
    return f"{name}: {profile.core_reason}" if profile.core_reason else name


def _exceptions(source: Source) -> Iterator[Fact]:
    """What is not as usual."""
    profile = source.measured
    if source.is_estimate:
        strata = source.program.strata
        modules = strata.looked_at(of_functions=False)
        functions = strata.looked_at(of_functions=True)
        yield (
            "Looked into",
            f"modules in {modules}, functions in {functions} "
            f"of {strata.steps} steps and evaluation calls; where that is "
            "not all of them, numbers are estimates for all",
        )
    if profile.devices:
        yield "Devices", device_text(profile) or ", ".join(profile.devices)
    if not profile.has_functions:
        yield "Functions", "not measured: profile(functions=True) does"
    if profile.memory is None:
        yield "Memory", "not measured: profile(memory=True) does"
    if profile.aborted_calls:
        yield "Ended by an exception", f"{profile.aborted_calls} calls"
    if profile.undivided_passes:
        passes = str(profile.undivided_passes)
        yield "Not divided", f"{passes} backward passes over nodes of several threads"
    for line in profile.not_measured:
        yield "Cannot be measured", line
