"""The part of a run that a screen or a page shows: the loop, without the start-up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from torchprof_hooks.documents.build.findings import (
    Bottleneck,
    Departure,
    Unusual,
    bottleneck_of,
    departing,
    unusual_layers,
)
from torchprof_hooks.documents.build.layers import (
    Hottest,
    Shares,
    hottest,
    shares_of,
)
from torchprof_hooks.documents.render.units import best_time
from torchprof_hooks.documents.words import (
    IN_PYTHON,
    Hints,
    percent,
    plural,
)
from torchprof_hooks.profiles.cells import outermost
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.kinds import LayerKind, by_kind, without_numbers
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.parts import Part
from torchprof_hooks.profiles.program import Program
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.step_times import NO_STEP_TIMES
from torchprof_hooks.profiles.tree import Node

#: All steps were measured.
NONE_UNMEASURED: Final = Part("unmeasured")

#: Fewer steps or evaluation calls of a program are not called its loop.
_FEWEST_ROUNDS: Final = 3
#: The most outermost modules that the title of a document names.
_NAMES: Final = 3


class Share(NamedTuple):
    """A part of the time of a run. whole: the name of the whole: "run" or "loop"."""

    part_ns: int
    whole_ns: int
    whole: str

    @property
    def fraction(self) -> float:
        """The part as a number from 0 to 1; 0.0 if the whole is 0."""
        return self.part_ns / self.whole_ns if self.whole_ns else 0.0

    def __str__(self) -> str:
        """``12.0 % of the loop (1.20sec)``."""
        share, took = percent(self.fraction), best_time(self.part_ns)
        return f"{share} of the {self.whole} ({took})"


class Turns(NamedTuple):
    """What a run repeats: steps; or, if no optimizer steps, calls of outermost modules.

    number: how many there were.
    noun: the name of one.
    """

    number: int
    noun: str


@dataclass(frozen=True)
class View:
    """The parts of a profile, and results that several blocks of a document need.

    profile: what was measured of the run.
    shown: the loop; the same as `profile`, if the loop is not known apart.
    start_up: what came before the loop; None if `shown` is the same as `profile`.
    unmeasured: the steps that were not measured.
    hints: what shows more.
    """

    profile: ProfileData
    shown: ProfileData
    start_up: ProfileData | None = None
    unmeasured: Part = NONE_UNMEASURED
    hints: Hints = IN_PYTHON

    @property
    def of_shown(self) -> str:
        """`` of the loop``, if `shown` is that; "" if it is all that was measured."""
        return " of the loop" if self.start_up else ""

    @property
    def of_all(self) -> str:
        """What is about `profile`, below a screen about the loop: `` of the whole
        run``."""
        if self.start_up is None:
            return ""
        is_part = self.unmeasured.wall_ns > 0
        return " of all measured steps" if is_part else " of the whole run"

    @property
    def title(self) -> str:
        """What was run: the message of a program, or names of outermost modules."""
        if self.profile.program and self.profile.program.message:
            return self.profile.program.message
        infos = self.shown.modules
        names = dict.fromkeys(path[0] for path, _ in self.shown.cells)
        modules = [
            name
            for name in names
            if infos[name].kind == "module"
            and not _is_part(name, infos[name].class_name, names)
        ]
        # The same whatever the order in which profiles were merged.
        modules.sort(key=lambda name: (infos[name].order, name))
        more = ", ..." if len(modules) > _NAMES else ""
        return ", ".join(modules[:_NAMES]) + more

    @property
    def end_of_start_up(self) -> str:
        """The end of the start-up: ``the first step``."""
        times = self.start_up.step_times if self.start_up else NO_STEP_TIMES
        if times.steps or not times.evaluations:
            return "the first step"
        calls = plural(times.evaluations, "evaluation call")
        return f"the first {calls.removeprefix('1 ')}"

    @cached_property
    def tree(self) -> Node:
        """The tree of modules, with optimizers, data and so on beside them."""
        return self.shown.tree()

    @cached_property
    def shares(self) -> Shares:
        """The times of phases, by the clock that counts (see `layers`)."""
        return shares_of(self.shown)

    @cached_property
    def phase_times_ns(self) -> Counter[Phase]:
        """The times of phases by the host's clock."""
        return self.shown.phase_times_ns() if self.device else self.shares.times_ns

    @property
    def whole_ns(self) -> int:
        """The time that shares by that clock are a part of."""
        return max(self.shares.whole_ns, 1)

    @property
    def device(self) -> str:
        """See `busy_device`."""
        return self.shares.device

    @cached_property
    def _modules(self) -> Sequence[Row]:
        return [row for row in self.shown.rows() if row.kind == "module"]

    @cached_property
    def _kinds(self) -> Mapping[LayerKind, Sequence[Row]]:
        return by_kind(self._modules)

    @cached_property
    def departing(self) -> Mapping[str, Departure]:
        """The layers that depart from their kind, by name (see `departing`)."""
        return departing(self._kinds.values(), self.whole_ns, self.device)

    @cached_property
    def hottest(self) -> Hottest | None:
        """The layers of the kind with the most own time (see `hottest`)."""
        return hottest(self._kinds, self.device, self.departing)

    @cached_property
    def bottleneck(self) -> Bottleneck | None:
        """What takes most, and can be changed: layers, or what is no module."""
        rows, shares, hot = self.shown.rows(), self.shares, self.hottest
        return bottleneck_of(self.shown, rows, shares, hot, is_loop=self.is_loop)

    @cached_property
    def unusual(self) -> Sequence[Unusual]:
        """What is unusual about layers that take much, the longest first. That one of
        them departs is not, if all of its kind have inputs of other shapes, such as
        the stages of a convolutional network."""
        apart = self.departing
        kinds = by_kind(self._modules, apart) if apart else self._kinds
        found = unusual_layers(self.whole_ns, kinds, apart, self.device)
        return [
            one
            for one in found
            if one.departure is None or self.calls_apart(one) is not None
        ]

    def calls_apart(self, one: Unusual) -> str | None:
        """The longest call of a layer that others of its kind do not make; "" if they
        make the same calls, or that is not known; None if these differ, too."""
        common = without_numbers(one.name)
        calls: dict[str, dict[str, int]] = {
            row.name: {}
            for row in self._modules
            if without_numbers(row.name) == common
            and row.class_name == one.kind.class_name
        }
        for row in self.calls:
            if row.module in calls:
                calls[row.module][row.name.partition(": ")[2]] = row.self_ns
        its = calls.pop(one.name)
        theirs, *others = (each.keys() for each in calls.values())
        if any(each != theirs for each in others):
            return None
        return max(its.keys() - theirs, key=its.__getitem__, default="")

    @cached_property
    def tips(self) -> dict[str, list[Any]]:
        """What rules have found, by their names: several blocks have tips."""
        return {}

    # What rules ask

    @property
    def program(self) -> Program:
        """What is known of the program; of a loop alone, nothing."""
        return self.profile.program or Program()

    @property
    def is_loop(self) -> bool:
        """Whether time outside modules is that of a loop, which goes through it again
        and again, and not of imports, or of what comes after a single step."""
        if self.profile.program is None:
            return True
        rounds = self.shown.steps + self.shown.step_times.evaluations
        return self.start_up is not None and rounds >= _FEWEST_ROUNDS

    @cached_property
    def is_compiled(self) -> bool:
        """Whether any of the modules is compiled: nobody need be told to do so."""
        return any(info.compiled for info in self.shown.modules.values())

    @cached_property
    def calls(self) -> tuple[Row, ...]:
        """The calls of functions, by shapes and by the module around."""
        rows = self.shown.rows("call") if self.shown.has_functions else ()
        return tuple(row for row in rows if row.kind == "function")

    @cached_property
    def turns(self) -> Turns:
        """How many steps and evaluation calls, or calls of the model, there were."""
        profile, times = self.shown, self.shown.step_times
        steps, evaluations = profile.steps, times.evaluations
        if steps + evaluations > 1:
            noun = "step or evaluation call" if evaluations else "step"
            return Turns(steps + evaluations, noun)
        outer = {path[0] for path, _ in profile.cells}
        calls = sum(outermost(profile.cells, name).calls for name in outer)
        return Turns(calls, "call of the model")

    def per_turn(self, count: int) -> float:
        """The mean of a count per step, or per call of the model (see `turns`)."""
        return count / max(self.turns.number, 1)

    def share(self, part_ns: int) -> Share:
        """This time as a share of all that is shown."""
        return Share(part_ns, self.shown.wall_ns, "loop" if self.start_up else "run")

    def of_phases(self, *phases: Phase) -> Share:
        """The share of these phases."""
        times = self.phase_times_ns
        return self.share(sum(times[phase] for phase in phases))


def view_of(profile: ProfileData, hints: Hints = IN_PYTHON) -> View:
    """The view of a profile."""
    measured, unmeasured, loop = profile.only_measured, profile.unmeasured, profile.loop
    if len(measured.parts) > 1 and _has_steps(loop) and not loop.is_empty:
        return View(measured, loop, profile.start_up, unmeasured, hints)
    return View(measured, measured, None, unmeasured, hints)


def _is_part(name: str, class_name: str, names: Collection[str]) -> bool:
    """Whether it is a part of a model, which the program also calls by itself. A region
    has its class's name, with dots or without."""
    root = name.partition(".")[0]
    return root != name != class_name and root in names


def _has_steps(loop: ProfileData) -> bool:
    """Whether the loop repeats something: steps; or in a whole program, evaluation
    calls."""
    times = loop.step_times
    return loop.steps > 0 or (loop.program is not None and times.evaluations > 0)
