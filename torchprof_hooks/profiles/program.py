"""What a whole program did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from torchprof_hooks.profiles.compilation import CompilationSummary
from torchprof_hooks.profiles.fields import Count
from torchprof_hooks.profiles.memory_replay import MemoryReplay
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program_facts import ProgramFacts
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.step_times import StepTimes
from torchprof_hooks.profiles.strata import Strata


@dataclass(frozen=True)
class ProgramProfile:
    """The profile of a program, from its first import of torch to its end.

    message: what was run.
    strata: its steps, in the thread that imported torch.
    program_ns: time since the package was first imported by it.
    overhead_ns: what measuring took of it, about.
    has_warm_up: whether the first step counts.
    compilation: what torch.compile did.
    replay: the memory of one step.
    not_replayed: why there is none.
    facts: what else is known of it.
    """

    message: str
    strata: Strata
    program_ns: Count
    overhead_ns: Count = 0
    has_warm_up: bool = True
    compilation: CompilationSummary = field(default_factory=CompilationSummary)
    replay: MemoryReplay | None = None
    not_replayed: str = ""
    facts: ProgramFacts = field(default_factory=ProgramFacts)

    @cached_property
    def whole(self) -> Profile:
        """What was measured, as it was."""
        return replace(self.strata.whole, overhead_ns=self.overhead_ns)

    @cached_property
    def step_times(self) -> StepTimes:
        """Of all steps, but one that was traced."""
        return self.strata.step_times

    @cached_property
    def by_module(self) -> Profile:
        """All steps, had modules been looked at in each."""
        return self.strata.estimate(of_functions=False, warm_up=self.has_warm_up)

    @cached_property
    def by_function(self) -> Profile:
        """All steps, had functions been looked at in each."""
        return self.strata.estimate(of_functions=True, warm_up=self.has_warm_up)

    @cached_property
    def phase_times_ns(self) -> Mapping[Phase, int]:
        """What each phase took, of all steps."""
        return self.by_module.phase_times_ns()

    def function_rows(self, by: str) -> tuple[Row, ...]:
        """Those of `by_function` (see `Profile.rows`), made once."""
        if by not in self._function_rows:
            self._function_rows[by] = self.by_function.rows(by)
        return self._function_rows[by]

    @cached_property
    def _function_rows(self) -> dict[str, tuple[Row, ...]]:
        return {}

    @cached_property
    def part_times_ns(self) -> dict[str, int]:
        """By name, what the modules (and profiled functions) took that were called from
        outside of all others, with all that belongs to them; the most expensive first.
        """
        times: dict[str, int] = {}
        profile = self.by_module
        for (path, _), totals in profile.cells.items():
            if profile.modules[path[0]].kind == "module":
                times[path[0]] = times.get(path[0], 0) + totals.self_ns
        return dict(sorted(times.items(), key=lambda item: (-item[1], item[0])))
