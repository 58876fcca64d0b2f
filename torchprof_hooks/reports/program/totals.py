"""The first section: what was run, and where its time went as a whole."""

from __future__ import annotations

from collections.abc import Iterator

from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.program import ProgramProfile
from torchprof_hooks.reports.table import plural

_PHASES: dict[Phase, str] = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recompute",
    "optimizer": "optimizers",
    "outside": "outside of modules, data loading among it",
    "profiler": "the profiler's own planning",
}


def totals_section(program: ProgramProfile) -> str:
    """The section as text.

    Example::

        Program profiling
        =================
          Message: train.py
          Time since the program began: 12.340s
          Time since torch was imported: 10.000s, 100 steps of 0.100000s (10.00 per s)
            forward: 3.000s (30.0%)
            backward: 6.000s (60.0%)
            ...
    """
    title = "Program profiling"
    return "\n".join([title, "=" * len(title), *_lines(program)])


def _lines(program: ProgramProfile) -> Iterator[str]:
    profile = program.profile
    yield f"  Message: {program.message}"
    yield f"  Time since the program began: {program.program_ns / 1e9:.3f}s"
    wall_ns, steps = profile.wall_ns, profile.steps
    line = f"  Time since torch was imported: {wall_ns / 1e9:.3f}s"
    if steps and wall_ns:
        per_step, per_second = wall_ns / 1e9 / steps, steps * 1e9 / wall_ns
        line += f", {plural(steps, 'step')} of {per_step:.6f}s ({per_second:.2f} per s)"
    yield line
    for phase, text in _PHASES.items():
        phase_ns = sum(
            totals.self_ns
            for (_, each), totals in profile.cells.items()
            if each == phase
        )
        if phase_ns:
            share = 100 * phase_ns / wall_ns
            yield f"    {text}: {phase_ns / 1e9:.3f}s ({share:.1f}%)"
    share = 100 * profile.overhead_ns / wall_ns if wall_ns else 0.0
    seconds = profile.overhead_ns / 1e9
    yield f"  Measuring took about {seconds:.3f}s ({share:.1f}%) of it"


def global_stats(program: ProgramProfile) -> str:
    """One line for the process.

    Example::

        Global stats: 12.340s since the program began, 9.500s in modules and optimizers
    """
    seconds, inside = program.program_ns / 1e9, program.profile.attributed_ns / 1e9
    return (
        f"Global stats: {seconds:.3f}s since the program began, {inside:.3f}s in "
        "modules and optimizers"
    )
