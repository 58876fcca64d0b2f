"""The report that is printed when a program ends, in the sections that Theano had."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.reports.program.compilation import compilation_lines
from torchprof_hooks.reports.program.device_idle import idle_lines
from torchprof_hooks.reports.program.groups import Tables, group_lines
from torchprof_hooks.reports.program.memory import memory_lines
from torchprof_hooks.reports.program.part import part_lines, sum_lines
from torchprof_hooks.reports.program.tips import tips_lines
from torchprof_hooks.reports.program.totals import totals_lines
from torchprof_hooks.reports.ranks.collectives import collective_lines
from torchprof_hooks.reports.time_tree import (
    footnotes,
    placed_nodes,
    select_nodes,
    time_tree,
)

#: Share of the time of all from which on a function has tables of its own.
LEAST_SHARE = 0.05


class Layout(NamedTuple):
    """How much is shown.

    n_ops: rows of Class and Ops. n_apply: rows of Apply and Device.
    width: characters in a line.
    every_pass: whether the passes of torch.compile are listed.
    with_memory: whether there is a section for memory.
    """

    n_ops: int = 20
    n_apply: int = 20
    width: int = 512
    every_pass: bool = False
    with_memory: bool = False


#: The most characters in a line of tables that Theano's report did not have.
_WIDEST: Final = 120
#: Modules in the tree.
_MODULES_SHOWN: Final = 40
#: How titles of sections that are no tables end: they are underlined.
_NO_TABLES: Final = ("profiling", "printed profiles")

DEFAULT: Final = Layout()

#: Title and lines of a section.
Section = tuple[str, Iterable[str]]


def program_report(program: ProgramProfile, layout: Layout = DEFAULT) -> str:
    """The report as text. A section that fails says so in its place; the others are not
    lost with it.

    See docs/exit_report.md for a whole report.
    """
    sections = (
        _text(title, lines, layout.width) for title, lines in _sections(program, layout)
    )
    return "\n\n".join(sections)


def _text(title: str, lines: Iterable[str], width: int) -> str:
    try:
        shown = list(lines)
    except Exception as error:  # whatever it is, the rest of the report is not lost
        shown = [f"(failed: {type(error).__name__}: {error})"]
    if title.endswith(_NO_TABLES):
        return "\n".join([title, "=" * len(title), *shown])
    return "\n".join([title, "---", *(line[:width].rstrip() for line in shown)])


def _sections(program: ProgramProfile, layout: Layout) -> Iterator[Section]:
    yield "Program profiling", totals_lines(program)
    large = _large_parts(program)
    for name in large:
        yield "Function profiling", part_lines(program, name)
        if len(large) > 1:
            yield from _tables(program, layout, name)
    if len(large) > 1:
        title = f"Sum of all({len(large)}) printed profiles"
        yield title, sum_lines(program, large)
    yield from _tables(program, layout)
    yield "Modules", _modules(program, layout.width)
    if not program.compilation.is_empty:
        lines = compilation_lines(program.compilation, layout.every_pass)
        yield "Compilation", lines
    if program.whole.collectives:
        yield "Communication", _communication(program, layout.width)
    if idle := program.device_idle:
        yield "Device", idle_lines(idle, layout.n_apply)
    if layout.with_memory:
        yield "Memory Profile", memory_lines(program)
    yield "Tips", tips_lines(program, layout.width)


def _large_parts(program: ProgramProfile) -> tuple[str, ...]:
    times = program.part_times_ns
    least_ns = LEAST_SHARE * sum(times.values())
    return tuple(name for name, part_ns in times.items() if part_ns >= least_ns)


def _tables(
    program: ProgramProfile, layout: Layout, name: str = ""
) -> Iterator[Section]:
    """Class, Ops and Apply: of one part of the program, or of all."""
    tables = Tables(program, name)
    yield "Class", group_lines(tables, "class", layout.n_ops)
    yield "Ops", group_lines(tables, "function", layout.n_ops)
    yield "Apply", group_lines(tables, "call", layout.n_apply)


def _modules(program: ProgramProfile, width: int) -> Iterator[str]:
    """The tree of modules."""
    profile = program.by_module
    nodes = placed_nodes(profile, None)
    shown = select_nodes(nodes, _MODULES_SHOWN, None)
    yield from time_tree(profile, shown, "auto", min(width, _WIDEST)).splitlines()
    yield from footnotes(profile, nodes, shown)


def _communication(program: ProgramProfile, width: int) -> Iterator[str]:
    """What measured steps exchanged, without the first one if others did, too."""
    measured = program.strata.estimate(of_functions=False, warm_up=False).collectives
    found = measured or program.whole.collectives
    yield from collective_lines(found, min(width, _WIDEST))
