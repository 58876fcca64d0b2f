"""The first section: what was run, and where its time went as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.reports.header import core_of, step_texts
from torchprof_hooks.reports.program.part import phase_lines
from torchprof_hooks.reports.table import plural


def totals_lines(program: ProgramProfile) -> Iterator[str]:
    """The lines of the section."""
    wall_ns = program.whole.wall_ns
    yield f"  Message: {program.message}"
    seconds = program.program_ns / 1e9
    yield f"  Time since torchprof_hooks was loaded: {seconds:.3f}s"
    in_tables_ns = program.by_module.wall_ns
    left_out = "" if program.has_warm_up else f", {in_tables_ns / 1e9:.3f}s of it below"
    yield f"  Time measured: {wall_ns / 1e9:.3f}s{left_out}"
    yield from phase_lines(program.by_module)
    compilation = program.compilation
    if not compilation.is_empty:
        count = plural(compilation.compilations, "compilation")
        yield f"  torch.compile counts {compilation.total_ns / 1e9:.3f}s in {count}"
    yield from _step_lines(program)
    overhead_ns = program.overhead_ns
    share = 100 * overhead_ns / wall_ns if wall_ns else 0.0
    core = core_of(program.whole)
    yield f"  Measuring took about {overhead_ns / 1e9:.3f}s ({share:.1f}%){core}"
    yield from (f"  Not measured: {line}" for line in program.whole.not_measured)


def _step_lines(program: ProgramProfile) -> Iterator[str]:
    strata = program.strata
    texts = list(step_texts(replace(program.whole, step_times=program.step_times)))
    yield from (f"  {text}" for text in texts or [plural(strata.steps, "step")])
    if strata.disturbed.steps:
        count = plural(strata.disturbed.steps, "traced step")
        disturbed_s = strata.disturbed.steps_ns / 1e9
        yield f"  Not in the tables: {count}, {disturbed_s:.3f}s"
    yield from (f"  {text}" for text in sample_text(program))


def sample_text(program: ProgramProfile) -> Iterator[str]:
    """In how many steps phases, modules and functions were measured; nothing if all
    were, in each step."""
    strata = program.strata
    modules = strata.looked_at(of_functions=False)
    functions = strata.looked_at(of_functions=True)
    whole = program.whole
    kinds = {whole.modules[path[-1]].kind for path, _ in whole.cells}
    if "function" not in kinds:  # they were not to be looked at, or there are none
        functions = modules
    if min(modules, functions) == strata.steps:
        return
    calls = " and evaluation calls" if program.step_times.evaluations else ""
    of_all = f"of {strata.steps} steps{calls}"
    and_functions = f", functions in {functions}" if "function" in kinds else ""
    if strata.counted.steps:
        yield (
            f"Phases were timed in {strata.steps_in_phases} {of_all}, modules looked "
            f"into in {modules}{and_functions}; times of phases and the tables are "
            "estimates for all"
        )
    else:
        yield (
            f"Modules were looked into in {modules} {of_all}{and_functions}; the "
            "tables are estimates for all"
        )
