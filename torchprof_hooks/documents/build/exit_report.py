"""The sections of a whole program's report, as in Theano's.

The tables Class, Ops and Apply show the same time by three groupings. In each,
optimizers, waiting for data, torch.compile and the rest of the program have rows, too,
so that all three add up to the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from torchprof_hooks.documents.build import facts
from torchprof_hooks.documents.build.memory import memory_text
from torchprof_hooks.documents.build.view import View
from torchprof_hooks.documents.document import Block, Column, Facts, Table
from torchprof_hooks.documents.render.units import best_time
from torchprof_hooks.documents.words import percent, plural
from torchprof_hooks.profiles.cells import call_site, outermost
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.many_shapes import with_common_names
from torchprof_hooks.profiles.names import MODULES_NAME, Grouping, Kind, Phase
from torchprof_hooks.profiles.phases import PHASE_TITLES
from torchprof_hooks.profiles.program import Program

#: The least share of the time of all parts for which a part has its own section.
LEAST_SHARE: Final = 0.05
#: Grouping -> the title of its section, and the header of its rows.
_SECTIONS: Final[Mapping[Grouping, tuple[str, str]]] = {
    "class": ("Class", "<Class name>"),
    "function": ("Ops", "<Function name>"),
    "call": ("Apply", "<Function call, by the module around it>"),
}
#: Kinds of rows whose calls are shown even if they took no time.
_CALLED: Final = ("module", "function")


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
        inside = {key: t for key, t in profile.cells.items() if key[0][0] == name}
        yield _part(profile.with_cells(inside), name)
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
        f"Time since torchprof_hooks was loaded: {best_time(program.program_ns)}",
        f"Time measured: {best_time(profile.wall_ns)}",
    ]
    if view.start_up:
        lines[-1] += f", {best_time(view.shown.wall_ns)} of it below"
    if of:
        lines.append(f"All that is below is{of}, unless it says otherwise")
    lines += _phase_lines(view.shown)
    texts = [*facts.unmeasured_texts(view), *facts.step_texts(view)]
    texts += facts.compared_texts(view)
    lines += (text[0].upper() + text[1:] for text in texts)
    if profile.measured.traced:
        traced = plural(profile.measured.traced, "traced step")
        taken = best_time(profile.measured.traced_ns)
        lines.append(f"Not in the tables: {traced}, {taken}")
    if include_overhead:
        lines += (text[0].upper() + text[1:] for text in facts.measuring(view))
    return Facts("program", "Program profiling", lines)


def _phase_lines(profile: ProfileData) -> Iterator[str]:
    for phase, phase_ns in profile.phase_times_ns().items():
        share = percent(phase_ns, profile.wall_ns)
        other = "other: " * (phase == "outside")
        yield f"  {other}{PHASE_TITLES[phase]}: {best_time(phase_ns)} ({share})"


# Functions: outermost modules, and profiled functions


def _part_times_ns(profile: ProfileData) -> dict[str, int]:
    """The cumulative time of each outermost module (or profiled function), by name; the
    most expensive first."""
    times: Counter[str] = Counter()
    for (path, _), totals in profile.cells.items():
        if profile.modules[path[0]].kind == "module":
            times[path[0]] += totals.self_ns
    return dict(sorted(times.items(), key=lambda item: (-item[1], item[0])))


def _part(part: ProfileData, name: str) -> Facts:
    place = part.modules[name].place
    calls = outermost(part.cells, name).calls
    per_call = f" ({best_time(part.wall_ns / calls)} per call)" if calls else ""
    lines = [
        f"Message: {name}{', ' * bool(place)}{place}",
        f"Time in {plural(calls, 'call')} to {name}: {best_time(part.wall_ns)}"
        + per_call,
        *_phase_lines(part),
    ]
    times: Counter[str] = Counter()
    for (path, _), totals in part.cells.items():
        times[part.modules[path[-1]].kind] += totals.self_ns
    if inside_ns := times["function"]:
        lines.append(
            f"Time in functions: {best_time(inside_ns)} "
            f"({percent(inside_ns, part.wall_ns)}), outside of them (Python, calling "
            f"them): {best_time(part.wall_ns - inside_ns)}"
        )
    device_ns = sum(totals.device_self_ns for totals in part.cells.values())
    if device_ns:
        devices = ", ".join(part.devices)
        lines.append(
            f"Time on {devices}: {best_time(device_ns)} (not a part of the above)"
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
        f"Time {text}: {best_time(ns)} ({percent(ns, profile.wall_ns)})"
        for text, ns in named.items()
    ]
    return Facts("sum", title, [*lines, f"Sum: {best_time(profile.wall_ns)}"])


def memory_facts(profile: ProfileData) -> Iterator[Facts]:
    """How much memory was in use, in words."""
    memory = profile.memory
    text = memory_text(profile, memory) if memory else "memory was not measured"
    yield Facts("memory_profile", "Memory Profile", [text])


# Class, Ops, Apply


class _Item(NamedTuple):
    """A row of a table: the calls of one name in one phase.

    phase: "" for forward, or if the name has no other.
    runs: what runs the calls: "C", "Py", "C/Py".
    places: at how many places they are made.
    rate: GFLOP/s; None if that is not known.
    """

    name: str
    phase: str
    self_ns: int
    calls: int = 0
    runs: str = ""
    places: int = 0
    rate: float | None = None


def tables(profile: ProfileData, layout: ExitLayout) -> Iterator[Block]:
    """What takes the time, by each grouping, the most first."""
    for by in _SECTIONS:
        yield _table(profile, by, layout.n_apply if by == "call" else layout.n_ops)


def _table(profile: ProfileData, by: Grouping, most: int) -> Block:
    title, corner = _SECTIONS[by]
    name = title.lower()
    items = sorted(_items(profile, by), key=lambda i: (-i.self_ns, i.name, i.phase))
    whole_ns = sum(item.self_ns for item in items)
    if not whole_ns:
        return Facts(name, title, ["(nothing was measured here)"])
    shares = [item.self_ns / whole_ns for item in items]
    means = [item.self_ns / item.calls if item.calls else None for item in items]
    own, sums = [item.self_ns for item in items], [*accumulate(shares)]
    columns = [
        Column("<phase>", "text", [item.phase for item in items], "phase"),
        Column("<% time>", "share", shares, "share", shows_zeros=True),
        Column("<sum %>", "share", sums, "sum_of_shares", 3, shows_zeros=True),
        Column("<apply time>", "ns", own, "self_ns", shows_zeros=True),
        Column("<time per call>", "ns", means, "mean_self_ns", 4),
        Column("<type>", "text", [item.runs for item in items], "type", 2),
        Column("<#call>", "count", [item.calls for item in items], "calls"),
        Column("<#apply>", "count", [item.places for item in items], "places", 1),
        Column("<GFLOP/s>", "number", [i.rate for i in items], "gflop_per_s", 5),
    ]
    return Table(
        name,
        title,
        corner,
        [item.name for item in items],
        columns,
        most=most,
        left_out="(remaining {count} rows account for {share} of the runtime)",
        shares=shares,
    )


def _items(profile: ProfileData, by: Grouping) -> Iterator[_Item]:
    """All rows of one grouping, in no order."""
    if by == "call":
        profile = with_common_names(profile)
    runs, places = _implementations(profile, by), _places(profile, by)
    of_modules: Counter[Phase] = Counter()
    for row in profile.rows(by):
        for phase, totals in row.phases.items():
            if by == "call" and row.kind == "module":
                of_modules[phase] += totals.self_ns
            elif totals.self_ns or (totals.calls and row.kind in _CALLED):
                is_known = totals.flops and totals.self_ns
                yield _Item(
                    row.name,
                    "" if _is_plain(phase, row.kind) else phase,
                    totals.self_ns,
                    totals.calls,
                    "/".join(sorted(runs.get(row.name, ()))),
                    places[row.name],
                    totals.flops / totals.self_ns if is_known else None,
                )
    for phase, self_ns in of_modules.items():
        if self_ns:
            shown = "" if _is_plain(phase, "outside") else phase
            yield _Item(MODULES_NAME, shown, self_ns)


def _is_plain(phase: Phase, kind: Kind) -> bool:
    """Whether a phase is not named: it is forward, or the only one of its row."""
    return phase in ("forward", kind) or (phase == "outside" and kind != "module")


def _places(profile: ProfileData, by: Grouping) -> Counter[str]:
    """At how many places each is called, by the name of its row. Places are: for a
    class, its modules; for a function, its call sites; for a call site, the different
    chains of calls to it."""
    infos = profile.modules
    kind = "module" if by == "class" else "function"
    paths = {path for path, _ in profile.cells if infos[path[-1]].kind == kind}
    if by == "call":
        return Counter(call_site(path, infos) for path in paths)
    if by == "class":
        return Counter(infos[name].class_name for name in {path[-1] for path in paths})
    sites = {(call_site(path, infos), infos[path[-1]].class_name) for path in paths}
    return Counter(function for _, function in sites)


def _implementations(profile: ProfileData, by: Grouping) -> Mapping[str, set[str]]:
    infos = profile.modules
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path, _ in profile.cells:
        info = infos[path[-1]]
        name = call_site(path, infos) if by == "call" else info.class_name
        if info.kind == "module":
            found[name].add("compiled" if info.compiled else "Py")
        elif info.implementation:
            found[name].add(info.implementation)
    return found
