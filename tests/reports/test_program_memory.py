from __future__ import annotations

from torchprof_hooks import Profile
from torchprof_hooks.profiles.memory import MemorySummary
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.profiles.program.strata import Strata
from torchprof_hooks.profiles.program.stratum import Stratum
from torchprof_hooks.reports.program.memory import memory_lines

MB = 1024**2
SUMMARY = MemorySummary("cpu", True, 12 * MB, ("Net", "Net.body", "linear"), "backward")


def section(memory: MemorySummary | None) -> list[str]:
    profile = Profile(
        modules={"linear": ModuleInfo("linear", "function")}, memory=memory
    )
    return list(
        memory_lines(ProgramProfile("x", Strata(modules=Stratum(profile, 1)), 0))
    )


def test_the_section_tells_the_peak_and_who_set_it() -> None:
    peak, *_ = section(SUMMARY)
    assert peak.endswith("peak at least 12.00MB in Net.body: linear (backward)")


def test_memory_that_was_not_measured() -> None:
    assert section(None) == ["   memory was not measured"]
