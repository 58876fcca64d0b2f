"""The sections of a whole program's report that tell of its parts, as in Theano's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from torchprof_hooks.documents.build import facts
from torchprof_hooks.documents.build.memory import memory_text
from torchprof_hooks.documents.build.view import View
from torchprof_hooks.documents.document import Block, Facts
from torchprof_hooks.documents.words import percent, plural, seconds
from torchprof_hooks.profiles.cells import outermost
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.phases import PHASE_TITLES
from torchprof_hooks.profiles.program import Program

#: The least share of the time of all parts for which a part has its own section.
LEAST_SHARE: Final = 0.05


class ExitLayout(NamedTuple):
    """How much of a program's report is shown.

    n_ops: rows of Class and Ops.
    n_apply: rows of Apply and Device.
    every_pass: whether all recompiles, graph breaks and failures are listed.
    include_overhead: whether to print the profiler overhead: not below a screen that
        does.
    """

    n_ops: int = 20
    n_apply: int = 20
    every_pass: bool = False
    include_overhead: bool = True


def functions(profile: ProfileData) -> Iterator[Block]:
    """What Theano calls functions: each outermost module or profiled function that
    takes much; and, if these are several, their sum."""
    parts = _part_times_ns(profile)
    large = [n for n, ns in parts.items() if ns >= LEAST_SHARE * sum(parts.values())]
    for name in large:
        yield _part(_part_of(profile, name), name)
    if len(large) > 1:
        title = f"Sum of all({len(large)}) printed profiles"
        yield _sum(profile, parts, large, title)


# What was run


def totals(view: View, of: str, include_overhead: bool) -> Facts:
    """What was run, and how long it took.

    of: what the tables are about, if that is not obvious.
    """
    profile, program = view.profile, view.profile.program or Program()
    lines = [
        f"Message: {program.message}",
        f"Time since torchprof_hooks was loaded: {seconds(program.program_ns)}",
        f"Time measured: {seconds(profile.wall_ns)}",
    ]
    if view.start_up:
        lines[-1] += f", {seconds(view.shown.wall_ns)} of it below"
    if of:
        lines.append(f"All that is below is{of}, unless it says otherwise")
    lines += _phase_lines(view.shown)
    texts = [*facts.unmeasured_texts(view), *facts.step_texts(view)]
    texts += facts.compared_texts(view)
    lines += (text[0].upper() + text[1:] for text in texts)
    if profile.measured.traced:
        traced = plural(profile.measured.traced, "traced step")
        taken = seconds(profile.measured.traced_ns)
        lines.append(f"Not in the tables: {traced}, {taken}")
    if include_overhead:
        lines += (text[0].upper() + text[1:] for text in facts.measuring(view))
    return Facts("program", "Program profiling", lines)


def _phase_lines(profile: ProfileData) -> Iterator[str]:
    for phase, phase_ns in profile.phase_times_ns().items():
        share = percent(phase_ns, profile.wall_ns)
        other = "other: " * (phase == "outside")
        yield f"  {other}{PHASE_TITLES[phase]}: {seconds(phase_ns)} ({share})"


# Functions: outermost modules, and profiled functions


def _part_times_ns(profile: ProfileData) -> dict[str, int]:
    """The cumulative time of each outermost module (or profiled function), by name; the
    most expensive first."""
    times: Counter[str] = Counter()
    for (path, _), totals in profile.cells.items():
        if profile.modules[path[0]].kind == "module":
            times[path[0]] += totals.self_ns
    return dict(sorted(times.items(), key=lambda item: (-item[1], item[0])))


def _part_of(profile: ProfileData, name: str) -> ProfileData:
    """The profile of one outermost module: its forward, backward and recompute, with
    all that is inside."""
    cells = {key: totals for key, totals in profile.cells.items() if key[0][0] == name}
    return profile.with_cells(cells)


def _part(part: ProfileData, name: str) -> Facts:
    place = part.modules[name].place
    calls = outermost(part.cells, name).calls
    per_call = f" ({part.wall_ns / calls / 1e9:.6f}s per call)" if calls else ""
    lines = [
        f"Message: {name}{', ' * bool(place)}{place}",
        f"Time in {plural(calls, 'call')} to {name}: {seconds(part.wall_ns)}"
        + per_call,
        *_phase_lines(part),
    ]
    times: Counter[str] = Counter()
    for (path, _), totals in part.cells.items():
        times[part.modules[path[-1]].kind] += totals.self_ns
    if inside_ns := times["function"]:
        lines.append(
            f"Time in functions: {seconds(inside_ns)} "
            f"({percent(inside_ns, part.wall_ns)}), outside of them (Python, calling "
            f"them): {seconds(part.wall_ns - inside_ns)}"
        )
    device_ns = sum(totals.device_self_ns for totals in part.cells.values())
    if device_ns:
        devices = ", ".join(part.devices)
        lines.append(
            f"Time on {devices}: {seconds(device_ns)} (not a part of the above)"
        )
    return Facts(f"function.{name}", "Function profiling", lines)


def _sum(
    profile: ProfileData, parts: Mapping[str, int], large: Sequence[str], title: str
) -> Facts:
    """The times of all parts of a program, and the time outside of them.

    large: the parts that have their own section.
    """
    named = {f"in {name}": parts[name] for name in large}
    others = [ns for name, ns in parts.items() if name not in large]
    if others:
        named[f"in {plural(len(others), 'other function')}"] = sum(others)
    named["outside of all"] = profile.wall_ns - sum(named.values())
    lines = [
        f"Time {text}: {seconds(ns)} ({percent(ns, profile.wall_ns)})"
        for text, ns in named.items()
    ]
    return Facts("sum", title, [*lines, f"Sum: {seconds(profile.wall_ns)}"])


def memory_facts(profile: ProfileData) -> Iterator[Facts]:
    """How much memory was in use, in words."""
    memory = profile.memory
    text = memory_text(profile, memory) if memory else "memory was not measured"
    yield Facts("memory_profile", "Memory Profile", [text])
