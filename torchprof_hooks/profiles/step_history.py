"""The training steps of a run in the order of time, and what the slowest of them did
differently."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, replace
from heapq import nsmallest
from typing import Any, Final, NamedTuple

from torchprof_hooks.profiles.amounts import Signed
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.step_times import MOST_SLOW


class Stretch(NamedTuple):
    """Training steps, one after the other.

    first: the number of the first of them.
    longest_ns: the duration of the longest of them.
    """

    first: int
    steps: int
    total_ns: int
    longest_ns: int


class PhaseOfStep(NamedTuple):
    """What a phase took of a step, without the calls in it that are another phase, and
    what it takes of a usual step."""

    phase: Phase
    self_ns: Signed
    usual_ns: Signed

    @property
    def more_ns(self) -> int:
        """How much more than usual."""
        return self.self_ns - self.usual_ns


class SlowStep(NamedTuple):
    """A training step that took clearly longer than usual.

    Usual is the mean of the measured steps that were not slow.

    number: of the step in the run, from 1.
    duration_ns, usual_ns: how long it took, and how long a usual one does.
    phases: of both, what each phase took, the largest difference first: they add up to
        `duration_ns` and `usual_ns`. () if no usual step was measured in the same way.
    module: the module whose own time, in forward, backward and recompute, is at least
        half of the difference; "" if there is none.
    module_ns, module_usual_ns: that own time, and that of a usual step.
    objects: about how many objects Python had at its end: blocks of memory
        (`sys.getallocatedblocks`); 0: not known.
    """

    number: int
    duration_ns: int
    usual_ns: int
    phases: tuple[PhaseOfStep, ...] = ()
    module: str = ""
    module_ns: int = 0
    module_usual_ns: int = 0
    objects: int = 0

    @property
    def more_ns(self) -> int:
        """How much longer than usual the step took."""
        return self.duration_ns - self.usual_ns


@dataclass(frozen=True, slots=True)
class StepHistory:
    """Training steps in the order of time. Its size is limited, however many there are.

    first: the number of the first step: 2 if the first step of the run
        is a start-up, which is left out.
    stretch_steps, stretch_ns, longest_ns: of up to 512 stretches, one after the other,
        how many steps are in each, their sum, and the longest of them.
    slowest: of the slow steps, up to 16 that took most more than usual, these first.
    """

    first: int = 0
    stretch_steps: tuple[int, ...] = ()
    stretch_ns: tuple[int, ...] = ()
    longest_ns: tuple[int, ...] = ()
    slowest: tuple[SlowStep, ...] = ()

    @property
    def stretches(self) -> Iterator[Stretch]:
        """The steps, in stretches of about equally many."""
        first = self.first
        every = self.stretch_steps, self.stretch_ns, self.longest_ns
        for steps, total_ns, longest_ns in zip(*every, strict=True):
            yield Stretch(first, steps, total_ns, longest_ns)
            first += steps

    def merge(self, other: StepHistory) -> StepHistory:
        """The slowest steps of both; and the stretches of the one with more steps, as
        steps of several processes run at the same time."""

        def rank(history: StepHistory) -> tuple[Any, ...]:  # whatever their order
            every = replace(history, slowest=())
            return sum(history.stretch_steps), astuple(every)

        longer = max(self, other, key=rank)
        slowest = slowest_of((*self.slowest, *other.slowest))
        return replace(longer, slowest=slowest)


def slowest_of(steps: Iterable[SlowStep]) -> tuple[SlowStep, ...]:
    """Of slow steps, those to be kept, in their order."""
    return tuple(nsmallest(MOST_SLOW, steps, key=lambda s: (-s.more_ns, *s)))


#: For profiles without steps.
NO_HISTORY: Final = StepHistory()
