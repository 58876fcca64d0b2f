"""What a page or a screen is made from: a profile, or that of a whole program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from torchprof_hooks.profiles.names import MODULE_GROUPINGS, Grouping
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.profiles.program.strata import Strata
from torchprof_hooks.profiles.program.stratum import Stratum
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.step_times import NO_STEP_TIMES, StepTimes
from torchprof_hooks.profiles.tree import Node
from torchprof_hooks.reports.header import cost_texts, measured_text, step_texts
from torchprof_hooks.reports.hottest import Hottest, busy_device, hottest
from torchprof_hooks.reports.program.tips import Tip, find_tips
from torchprof_hooks.reports.program.totals import sample_text
from torchprof_hooks.reports.table import plural
from torchprof_hooks.reports.units import best_time

#: Outermost modules that a page has in its title.
_NAMES: Final = 3


@dataclass(frozen=True)
class Source:
    """What a page or a screen shows.

    title: what was run, "" if that is not known.
    measured: what is said about measuring.
    program: what rows and tips come from.
    is_estimate: whether only some of the steps were looked into, so that rows are
        estimates for all.
    start_up: what came before the loop that is shown, with the first step, or with the
        evaluation calls with which a program began; None if that is not known apart.
    """

    title: str
    measured: Profile
    program: ProgramProfile
    is_estimate: bool = False
    start_up: Profile | None = None

    @property
    def step_times(self) -> StepTimes:
        """Durations of all steps, with the first ones, but without traced ones."""
        return (self.program if self.is_estimate else self.measured).step_times

    @property
    def end_of_start_up(self) -> str:
        """What the start-up ends with: ``the first step``."""
        times = NO_STEP_TIMES if self.start_up is None else self.start_up.step_times
        if times.steps or not times.evaluations:
            return "the first step"
        calls = plural(times.evaluations, "evaluation call")
        return f"the first {calls.removeprefix('1 ')}"

    @property
    def modules(self) -> Profile:
        """Where rows of modules come from."""
        return self.program.by_module

    @property
    def functions(self) -> Profile:
        """Where rows of functions come from; if there are none, those of modules."""
        found = self.program.by_function
        return found if found.has_functions else self.modules

    @cached_property
    def tree(self) -> Node:
        """The tree of modules, with optimizers, data and so on beside them."""
        return self.modules.tree()

    @cached_property
    def tips(self) -> Sequence[Tip]:
        """See `find_tips`."""
        return find_tips(self.program)

    @property
    def times_text(self) -> str:
        """How long was measured, and what of that came before the loop."""
        text = measured_text(self.measured)
        if self.start_up:
            before, loop = best_time(self.start_up.wall_ns), self.modules.wall_ns
            text += f": {before} start-up with {self.end_of_start_up}, then "
            text += best_time(loop)
            traced_ns = self.program.strata.disturbed.profile.wall_ns
            if traced_ns:
                text += f", and {best_time(traced_ns)} in traced steps"
        return text

    @property
    def step_texts(self) -> Iterator[str]:
        """How many steps were measured, maybe in a few, with durations of all steps."""
        return step_texts(replace(self.measured, step_times=self.step_times))

    @property
    def notes(self) -> Iterator[str]:
        """In how many steps was measured, what that took, and what is not as usual."""
        if self.is_estimate:
            yield from sample_text(self.program)
        yield from cost_texts(self.measured, has_start_up=self.start_up is not None)
        yield from map("not measured: {}".format, self.measured.not_measured)

    @cached_property
    def hottest(self) -> Hottest | None:
        """The layers of the kind with the most own time (see `hottest`)."""
        rows = (row for row in self.rows("module") if row.kind == "module")
        return hottest(rows, busy_device(self.modules))

    def rows(self, by: Grouping) -> tuple[Row, ...]:
        """See `Profile.rows`; made once."""
        if by not in MODULE_GROUPINGS:
            return self.program.function_rows(by)
        if by not in self._rows:
            self._rows[by] = self.modules.rows(by)
        return self._rows[by]

    @cached_property
    def _rows(self) -> dict[Grouping, tuple[Row, ...]]:
        return {}


def source_of(profile: Profile, *, corrected: bool = True) -> Source:
    """A page about one profile, or about its loop, with what came before that apart.

    corrected: see `Profile.corrected`.
    """
    shown, start_up = profile, None
    if 0 < profile.first.steps < profile.steps:
        loop = profile.loop
        if not loop.is_empty:
            shown, start_up = loop, profile.start_up
    if corrected:
        shown = shown.corrected()
        start_up = start_up and start_up.corrected()
    return replace(source_of_all(shown), measured=profile, start_up=start_up)


def source_of_all(profile: Profile) -> Source:
    """A page about one profile as it is, with its start-up."""
    return Source(_outermost(profile), profile, _as_program(profile))


def source_of_loop(program: ProgramProfile) -> Source:
    """A page about the loop of a program, with what came before it apart: all until the
    first step was done, or evaluation calls with which it began. Without a loop, it is
    about all."""
    first = program.strata.warm_up
    loop, shown, start_up = replace(program, has_warm_up=False), program, None
    if 0 < first.steps < program.strata.steps and not loop.by_module.is_empty:
        shown = loop
        start_up = first.profile.corrected() if program.has_warm_up else None
    return Source(shown.message, shown.whole, shown, True, start_up)


def _outermost(profile: Profile) -> str:
    """Names of the modules that are called from outside of all others."""
    names = dict.fromkeys(path[0] for path, _ in profile.cells)
    modules = [name for name in names if profile.modules[name].kind == "module"]
    more = ", ..." if len(modules) > _NAMES else ""
    return ", ".join(modules[:_NAMES]) + more


class _AllSeen(ProgramProfile):
    """A program with all its steps in one profile: there is nothing to estimate."""

    @cached_property
    def whole(self) -> Profile:
        strata = self.strata
        seen = strata.functions if strata.functions.steps_ns else strata.modules
        return seen.profile

    @cached_property
    def by_module(self) -> Profile:
        return self.whole

    @cached_property
    def by_function(self) -> Profile:
        return self.whole

    def function_rows(self, by: Grouping) -> tuple[Row, ...]:
        return super().function_rows(by) if self.whole.has_functions else ()


def _as_program(profile: Profile) -> ProgramProfile:
    ended = profile.steps + profile.step_times.evaluations
    seen = Stratum(profile, ended, profile.wall_ns)
    # Where functions were not measured, what the loop calls is not told from its code.
    strata = Strata(functions=seen) if profile.has_functions else Strata(modules=seen)
    return _AllSeen("", strata, profile.wall_ns, profile.overhead_ns)
