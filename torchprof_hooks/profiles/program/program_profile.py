"""The profile of a whole program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final

from torchprof_hooks.profiles.cells import sum_of_own_ns
from torchprof_hooks.profiles.files.fields import DERIVED, OPTIONAL, Count
from torchprof_hooks.profiles.names import Grouping, Phase
from torchprof_hooks.profiles.operations.utilisation import Peak
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program.compilation import CompilationSummary
from torchprof_hooks.profiles.program.program_facts import ProgramFacts
from torchprof_hooks.profiles.program.strata import Strata
from torchprof_hooks.profiles.ranks.provenance import Processes
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.step_times import StepTimes
from torchprof_hooks.profiles.trace.device_idle import DeviceIdle


@dataclass(frozen=True, slots=True)
class ProgramRates:
    """What the user, or the data sheet of the device, says about rates.

    peak: the most operations per second that the device can do, None if unknown.
    items_per_step: tokens, samples or the like, 0 if nobody said.
    """

    peak: Annotated[Peak | None, OPTIONAL] = None
    items_per_step: Annotated[Count, OPTIONAL] = 0

    def added(self, estimate: Profile) -> Profile:
        """An estimate of all steps, as if functions had been measured, with rates."""
        items = self.items_per_step * estimate.steps
        return replace(estimate, peak=self.peak, items=items)


NO_RATES: Final = ProgramRates()


@dataclass(frozen=True)
class ProgramProfile:
    """The profile of a program, from its first import of torch to its end.

    message: what was run.
    strata: its steps, in the thread that imported torch.
    program_ns: time since the program first imported this package.
    overhead_ns: an estimate of the time that measuring took.
    has_warm_up: whether the first step counts.
    compilation: what torch.compile did.
    facts: what tips need to know besides times.
    rates: what MFU and items per second are computed from. Only the estimate has them:
        in what was measured, operations were counted in some of the steps alone.
    device_idle: how much devices idled in one step, None if that was not asked for.
    provenance: see `Profile`, of which it is a part in files.
    """

    message: str
    strata: Strata
    program_ns: Count
    overhead_ns: Count = 0
    has_warm_up: bool = True
    compilation: CompilationSummary = field(default_factory=CompilationSummary)
    facts: ProgramFacts = field(default_factory=ProgramFacts)
    rates: Annotated[ProgramRates, OPTIONAL] = NO_RATES
    device_idle: Annotated[DeviceIdle | None, OPTIONAL] = None
    provenance: Annotated[Processes, DERIVED] = field(default=(), compare=False)

    def save(self, path: str | Path) -> None:
        """Write the profile to a file that `Profile.load` reads, too (see
        `Profile.save`).

        Raises:
            OSError: the file cannot be written.
        """
        from torchprof_hooks.profiles.files import profile_file

        profile_file.save_program(self, path)

    @classmethod
    def load(cls, path: str | Path) -> ProgramProfile:
        """Read what `save` has written.

        Raises:
            ProfileFileError: the file is not the profile of a whole program, or is
                damaged.
            OSError: it cannot be read.
        """
        from torchprof_hooks.profiles.files import profile_file

        return profile_file.load_program(cls, Profile, path)

    @cached_property
    def whole(self) -> Profile:
        """All that was measured, without estimates."""
        return replace(
            self.strata.whole,
            overhead_ns=self.overhead_ns,
            provenance=self.provenance,
        )

    @cached_property
    def step_times(self) -> StepTimes:
        """Durations of all steps but those that were traced."""
        return self.strata.step_times

    @cached_property
    def by_module(self) -> Profile:
        """An estimate of all steps, as if modules had been measured in each."""
        return self.strata.estimate(of_functions=False, warm_up=self.has_warm_up)

    @cached_property
    def by_function(self) -> Profile:
        """An estimate of all steps, as if functions had been measured in each."""
        estimate = self.strata.estimate(of_functions=True, warm_up=self.has_warm_up)
        return self.rates.added(estimate)

    @cached_property
    def phase_times_ns(self) -> Mapping[Phase, int]:
        """The time of each phase in all steps."""
        return self.by_module.phase_times_ns()

    def function_rows(self, by: Grouping) -> tuple[Row, ...]:
        """The rows of `by_function` (see `Profile.rows`), made once."""
        if by not in self._function_rows:
            self._function_rows[by] = self.by_function.rows(by)
        return self._function_rows[by]

    @cached_property
    def _function_rows(self) -> dict[Grouping, tuple[Row, ...]]:
        return {}

    @cached_property
    def part_times_ns(self) -> dict[str, int]:
        """The time of each module (or profiled function) that was called from outside
        of all others, with all that belongs to it, by name; the most expensive first.
        """
        times: dict[str, int] = {}
        profile = self.by_module
        for (path, _), totals in profile.cells.items():
            if profile.modules[path[0]].kind == "module":
                times[path[0]] = times.get(path[0], 0) + totals.self_ns
        return dict(sorted(times.items(), key=lambda item: (-item[1], item[0])))


def part_of(profile: Profile, name: str) -> Profile:
    """The part of a profile inside of calls of one outermost module: its forward, and
    the backward and recompute of it. The own times add up to the `wall_ns` of the
    part."""
    cells = {key: totals for key, totals in profile.cells.items() if key[0][0] == name}
    return replace(profile, cells=cells, wall_ns=sum_of_own_ns(cells))
