"""The section Memory Profile: the peak, and the call that set it."""

from __future__ import annotations

from collections.abc import Iterator

from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.reports.memory_tree import heading


def memory_lines(program: ProgramProfile) -> Iterator[str]:
    """The lines of the section."""
    profile = program.whole
    if profile.memory is None:
        yield "   memory was not measured"
    else:
        yield f"   {heading(profile, profile.memory)}"
        yield "   measured live, see memory"
