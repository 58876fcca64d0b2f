"""One function of a program (an outermost module, or a profiled function), as a whole;
and the sum of all functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from torchprof_hooks.profiles.cells import outermost
from torchprof_hooks.profiles.names import UNSAMPLED_NAME
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program.pattern import UNSEEN
from torchprof_hooks.profiles.program.program_profile import ProgramProfile, part_of
from torchprof_hooks.reports.table import plural

#: The titles of phases, in the order in which they are shown; "unseen" is no phase.
PHASE_TITLES: dict[str, str] = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recompute",
    "optimizer": "optimizers",
    "data": "data loading",
    "waiting": "waiting for gradients",
    "communication": "communication",
    "compiling": "torch.compile",
    "garbage": "garbage collection",
    "outside": "outside of modules",
    "profiler": "measuring itself",
    "unseen": "not looked into",
}


def part_lines(program: ProgramProfile, name: str) -> Iterator[str]:
    """The lines of the section of one function."""
    part = part_of(program.by_module, name)
    info = program.whole.modules[name]
    place = f", {info.place}" if info.place else ""
    yield f"  Message: {name}{place}"
    calls = outermost(part.cells, name).calls
    seconds = part.wall_ns / 1e9
    per_call = f" ({seconds / calls:.6f}s per call)" if calls else ""
    yield f"  Time in {plural(calls, 'call')} to {name}: {seconds:.3f}s{per_call}"
    yield from phase_lines(part)
    functions = part_of(program.by_function, name)
    yield from _function_lines(functions)
    yield from _device_lines(part)


def phase_lines(profile: Profile) -> Iterator[str]:
    """The time of each phase, with its share."""
    for phase, phase_ns in shown_times_ns(profile).items():
        share = 100 * phase_ns / max(profile.wall_ns, 1)
        other = "other: " * (phase == "outside")
        yield f"    {other}{PHASE_TITLES[phase]}: {phase_ns / 1e9:.3f}s ({share:.1f}%)"


def shown_times_ns(profile: Profile) -> Counter[str]:
    """The time of each phase where there is any, in the order of `PHASE_TITLES`. What
    was not looked into is no time outside of modules here: nothing is known of it."""
    times: Counter[str] = Counter(profile.phase_times_ns())
    if UNSEEN in profile.cells:
        times["unseen"] = profile.cells[UNSEEN].self_ns
        times["outside"] -= times["unseen"]
    return Counter({phase: times[phase] for phase in PHASE_TITLES if times[phase]})


def _function_lines(profile: Profile) -> Iterator[str]:
    inside_ns = sum(
        totals.self_ns
        for (path, _), totals in profile.cells.items()
        if profile.modules[path[-1]].kind == "function"
    )
    known_ns = profile.wall_ns - sum(
        totals.self_ns
        for (path, _), totals in profile.cells.items()
        if path[-1] == UNSAMPLED_NAME
    )
    if inside_ns:
        share = 100 * inside_ns / known_ns
        yield (
            f"  Time in functions: {inside_ns / 1e9:.3f}s ({share:.1f}%), outside of "
            f"them (Python, calling them): {(known_ns - inside_ns) / 1e9:.3f}s"
        )


def _device_lines(profile: Profile) -> Iterator[str]:
    device_ns = sum(totals.device_self_ns for totals in profile.cells.values())
    if device_ns:
        devices = ", ".join(profile.devices)
        yield f"  Time on {devices}: {device_ns / 1e9:.3f}s (not a part of the above)"


def sum_lines(program: ProgramProfile, names: Sequence[str]) -> Iterator[str]:
    """All profiled functions of a program together, and the time outside of them.

    names: those that have a section of their own.

    Example::

          Time in Generator: 6.500s (52.0%)
          Time in Discriminator: 4.000s (32.0%)
          Time in 1 other function: 0.020s (0.2%)
          Time outside of all: 1.980s (15.8%)
          Sum: 12.500s
    """
    profile = program.by_module
    times = dict(program.part_times_ns)
    named = {f"in {name}": times.pop(name) for name in names}
    if times:
        others = plural(len(times), "other function")
        named[f"in {others}"] = sum(times.values())
    named["outside of all"] = profile.wall_ns - sum(named.values())
    for text, part_ns in named.items():
        share = 100 * part_ns / max(profile.wall_ns, 1)
        yield f"  Time {text}: {part_ns / 1e9:.3f}s ({share:.1f}%)"
    yield f"  Sum: {profile.wall_ns / 1e9:.3f}s"
