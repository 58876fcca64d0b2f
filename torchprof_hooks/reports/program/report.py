"""The report that is printed when a program ends, in the sections that Theano had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.reports.program.compilation import compilation_section
from torchprof_hooks.reports.program.device_idle import idle_section
from torchprof_hooks.reports.program.groups import Tables, group_section
from torchprof_hooks.reports.program.memory import memory_section
from torchprof_hooks.reports.program.part import part_section, sum_section
from torchprof_hooks.reports.program.tips import tips_section
from torchprof_hooks.reports.program.totals import totals_section
from torchprof_hooks.reports.ranks.collectives import collective_lines

#: Share of the time of all from which on a function has tables of its own.
LEAST_SHARE = 0.05


class Layout(NamedTuple):
    """How much is shown.

    n_ops: rows of Class and Ops. n_apply: rows of Apply, Device and the list of
        memory.
    width: characters in a line.
    min_memory_size: bytes from which on outputs are listed.
    every_pass: whether the passes of torch.compile are listed.
    with_memory: whether there is a section for memory.
    """

    n_ops: int = 20
    n_apply: int = 20
    width: int = 512
    min_memory_size: int = 1024
    every_pass: bool = False
    with_memory: bool = False


#: The most characters in a line of tables that Theano's report did not have.
_WIDEST: Final = 120

Section = tuple[str, Callable[[], str]]


DEFAULT: Final = Layout()


def program_report(program: ProgramProfile, layout: Layout = DEFAULT) -> str:
    """The report as text. A section that fails says so in its place; the others are not
    lost with it.

    See docs/exit_report.md for a whole report.
    """
    return "\n\n".join(
        _isolated(title, make) for title, make in _sections(program, layout)
    )


def _sections(program: ProgramProfile, layout: Layout) -> Iterator[Section]:
    yield "Program profiling", partial(totals_section, program)
    large = _large_parts(program)
    for name in large:
        yield f"Function profiling: {name}", partial(part_section, program, name)
        if len(large) > 1:
            yield from _tables(program, layout, name)
    if len(large) > 1:
        yield "Sum", partial(sum_section, program, large)
    yield from _tables(program, layout)
    if not program.compilation.is_empty:
        found, every_pass = program.compilation, layout.every_pass
        yield (
            "Compilation",
            lambda: compilation_section(found, layout.width, every_pass),
        )
    if program.whole.collectives:
        yield "Communication", partial(_communication, program, layout.width)
    if idle := program.device_idle:
        yield "Device", lambda: idle_section(idle, layout.n_apply, layout.width)
    if layout.with_memory:
        yield "Memory Profile", partial(_memory, program, layout)
    yield "Tips", partial(tips_section, program)


def _large_parts(program: ProgramProfile) -> tuple[str, ...]:
    times = program.part_times_ns
    least_ns = LEAST_SHARE * sum(times.values())
    return tuple(name for name, part_ns in times.items() if part_ns >= least_ns)


def _tables(
    program: ProgramProfile, layout: Layout, name: str = ""
) -> Iterator[Section]:
    """Class, Ops and Apply: of one part of the program, or of all."""
    tables = Tables(program, name, layout.width)
    yield "Class", partial(group_section, tables, "class", layout.n_ops)
    yield "Ops", partial(group_section, tables, "function", layout.n_ops)
    yield "Apply", partial(group_section, tables, "call", layout.n_apply)


def _communication(program: ProgramProfile, width: int) -> str:
    """What measured steps exchanged, without the first one if others did, too."""
    measured = program.strata.estimate(of_functions=False, warm_up=False).collectives
    found = measured or program.whole.collectives
    lines = collective_lines(found, min(width, _WIDEST))
    return "\n".join(["Communication", "---", *lines])


def _memory(program: ProgramProfile, layout: Layout) -> str:
    return memory_section(
        program.whole.memory,
        program.replay,
        max_rows=layout.n_apply,
        min_size=layout.min_memory_size,
        width=layout.width,
        reason=program.not_replayed,
    )


def _isolated(title: str, make: Callable[[], str]) -> str:
    try:
        return make()
    except Exception as error:  # whatever it is, the rest of the report is not lost
        return f"{title}\n---\n(failed: {type(error).__name__}: {error})"
