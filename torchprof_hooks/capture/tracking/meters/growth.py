"""Which owners of memory have more from step to step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from torchprof_hooks.profiles.memory import GrowingMemory, MemoryKind
from torchprof_hooks.profiles.names import Phase

#: An owner grows if it had more than ever before at each of so many readings in a row,
#: by so many bytes a step.
_IN_A_ROW: Final = 12
_LEAST: Final = 1024
#: The most readings that are kept.
_KEPT: Final = 48

#: The path and phase of an owner, and what its memory is.
Holder = tuple[tuple[str, ...], Phase, MemoryKind]


class _Reading(NamedTuple):
    """The end of a step: of how many, and the step's number. most: the most bytes that
    each owner has had at any reading until then."""

    steps: int
    number: int
    most: Counter[Holder]


class Growth:
    """Reads what owners have at the ends of steps.

    Readings are kept evenly over the run: of each step at first; when there would be
    more than `_KEPT`, every second one is dropped, and only half as many steps are read
    from then on. So memory is bounded, and the steps of a long run cost nothing.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._every = 1
        self._readings: list[_Reading] = []

    def step_ended(self, number: int, read: Callable[[], Counter[Holder]]) -> None:
        """A step has ended; `read` is called if it is one of those that are read."""
        self._steps += 1
        if (self._steps - 1) % self._every:
            return
        before = self._readings[-1].most if self._readings else Counter()
        self._readings.append(_Reading(self._steps, number, before | read()))
        if len(self._readings) > _KEPT:
            # Another one, as another thread may be looking at the list.
            self._readings = self._readings[::2]
            self._every *= 2

    def growing(self) -> Iterator[GrowingMemory]:
        """The owners that grow, since the first of their readings in a row."""
        readings = [*self._readings]
        for holder, size in readings[-1].most.items() if readings else ():
            rising = _rising(readings, holder)
            if len(rising) >= _IN_A_ROW:
                first, last = rising[0], rising[-1]
                grown = size - first.most[holder]
                per_step = round(grown / (last.steps - first.steps))
                yield GrowingMemory(*holder, size, per_step, first.number)


def _rising(readings: list[_Reading], holder: Holder) -> list[_Reading]:
    """The last ones in a row that each found more of it than all before."""
    for place in range(len(readings) - 1, 0, -1):
        before, now = readings[place - 1 : place + 1]
        rise = now.most[holder] - before.most[holder]
        if rise < _LEAST * (now.steps - before.steps):
            return readings[place + 1 :]
    return readings[1:]
