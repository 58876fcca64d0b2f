"""The report of a whole program, with the sections of Theano's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from torchprof_hooks.documents.build import facts
from torchprof_hooks.documents.build.compilation import compilation_blocks
from torchprof_hooks.documents.build.device import idle_blocks, kernel_tables
from torchprof_hooks.documents.build.exit_tables import SECTIONS, table_by
from torchprof_hooks.documents.build.full import communication, flop_tree
from torchprof_hooks.documents.build.memory import memory_text, memory_tree, peak_table
from torchprof_hooks.documents.build.memory_failure import failure_table, memory_first
from torchprof_hooks.documents.build.memory_growth import growth_table
from torchprof_hooks.documents.build.rules import find_tips
from torchprof_hooks.documents.build.tables import module_tree, placed_nodes
from torchprof_hooks.documents.build.view import View, view_of
from torchprof_hooks.documents.document import Block, Document, Facts, Tips
from torchprof_hooks.documents.render.text import text_of
from torchprof_hooks.documents.words import (
    PHASE_TITLES,
    percent,
    phase_times_ns,
    plural,
    seconds,
)
from torchprof_hooks.profiles.cells import outermost
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.program import Program

#: The least share of the time of all parts for which a part has its own tables.
LEAST_SHARE: Final = 0.05


class ReportLayout(NamedTuple):
    """How much of a program's report is shown.

    n_ops: rows of Class and Ops.
    n_apply: rows of Apply and Device.
    width: characters in a line.
    every_pass: whether all recompiles, graph breaks and failures are listed.
    with_memory: whether there is a section for memory.
    ignore_first_call: whether the start-up, with the first step, is left out.
    include_overhead: whether to print the profiler overhead: not below a screen that
        does.
    """

    n_ops: int = 20
    n_apply: int = 20
    width: int = 120
    every_pass: bool = False
    with_memory: bool = False
    ignore_first_call: bool = False
    include_overhead: bool = True


def program_text(profile: ProfileData, layout: ReportLayout | None = None) -> str:
    """The report as text."""
    layout = layout or ReportLayout()
    document = program_report(profile, layout)
    # Times range from microseconds to hours, so each one has its best unit.
    return text_of(document, width=layout.width, unit="auto_foreach")


def program_report(profile: ProfileData, layout: ReportLayout) -> Document:
    """The report of a program: see docs/exit_report.md for a whole one."""
    loop = view_of(profile)
    view, of = loop, loop.of_shown
    if not layout.ignore_first_call:
        view = View(loop.profile, loop.profile, None, loop.unmeasured)
        of = loop.of_all  # the screen shows the loop
    blocks = [
        block
        for title, section in _sections(view, of, layout, loop)
        for block in _whole(title, section)
    ]
    blocks = memory_first(profile, blocks)
    return Document("program", "", [], blocks)  # no title: the screen above has it


#: Makes the blocks of a section.
_Section = Callable[[], Iterator[Block]]


def _whole(title: str, section: _Section) -> list[Block]:
    """The blocks of a section; or, not to lose the others, why it failed."""
    try:
        return [*section()]
    except Exception as error:
        text = f"(failed: {type(error).__name__}: {error})"
        return [Facts(title, title, [text])]


def _sections(
    view: View, of: str, layout: ReportLayout, loop: View
) -> Iterator[tuple[str, _Section]]:
    """The sections with their titles.

    view: what the tables show.
    of: words that say so, if that is not obvious.
    loop: what the tips are about.
    """
    shown, program = view.shown, view.profile.program or Program()
    yield "Program profiling", lambda: _totals(view, of, layout.include_overhead)
    parts = _part_times_ns(shown)
    large = [n for n, ns in parts.items() if ns >= LEAST_SHARE * sum(parts.values())]
    for name in large:
        part = _part_of(shown, name)
        yield "Function profiling", partial(_part, part, name)
        if len(large) > 1:
            yield from _tables(part, layout, name)
    if len(large) > 1:
        title = f"Sum of all({len(large)}) printed profiles"
        yield title, lambda: _sum(shown, parts, large, title)
    yield from _tables(shown, layout)
    yield "Modules", lambda: _trees(view, of)
    yield (
        "Compilation",
        lambda: compilation_blocks(program.compilation, full=layout.every_pass),
    )
    if shown.collectives:
        yield "Communication", lambda: iter([communication(shown.collectives)])
    yield "Device", lambda: _device(loop, layout.n_apply)
    if layout.with_memory:
        yield "Memory Profile", lambda: _memory(view, of)
    yield "Tips", lambda: _tips(loop)


def _tables(
    profile: ProfileData, layout: ReportLayout, part: str = ""
) -> Iterator[tuple[str, _Section]]:
    """The sections Class, Ops and Apply: of one part of the program, or of all."""
    for by, (title, _) in SECTIONS.items():
        most = layout.n_apply if by == "call" else layout.n_ops
        yield title, partial(table_by, profile, by, most, part)


# What was run


def _totals(view: View, of: str, include_overhead: bool) -> Iterator[Block]:
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
    yield Facts("program", "Program profiling", lines)


def _phase_lines(profile: ProfileData) -> Iterator[str]:
    for phase, phase_ns in phase_times_ns(profile).items():
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


def _part(part: ProfileData, name: str) -> Iterator[Block]:
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
    yield Facts(f"function.{name}", "Function profiling", lines)


def _sum(
    profile: ProfileData, parts: Mapping[str, int], large: Sequence[str], title: str
) -> Iterator[Block]:
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
    yield Facts("sum", title, [*lines, f"Sum: {seconds(profile.wall_ns)}"])


# The rest


def _trees(view: View, of: str) -> Iterator[Block]:
    nodes = placed_nodes(view.tree, None)
    yield module_tree(view.shown, nodes, None, of)
    yield from flop_tree(view.shown, nodes, None, of)


def _device(view: View, most: int) -> Iterator[Block]:
    yield from idle_blocks(view, most)
    yield from kernel_tables(view)


def _memory(view: View, of: str) -> Iterator[Block]:
    profile, memory = view.shown, view.profile.memory
    text = memory_text(profile, memory) if memory else "memory was not measured"
    yield Facts("memory_profile", "Memory Profile", [text])
    yield from failure_table(view.profile)
    yield from growth_table(view.profile)
    yield from peak_table(view.profile)
    if profile.memory:
        nodes = placed_nodes(view.tree, None)
        yield memory_tree(profile, profile.memory, nodes, None, of)


def _tips(view: View) -> Iterator[Block]:
    tips = find_tips(view)
    if tips:
        yield Tips(tips)
    else:
        yield Facts("tips", "Tips", ["None: nothing that is looked for was found."])
