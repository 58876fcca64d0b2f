"""What memory does in steps: which owners have more from step to step; and one step,
block by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from torchprof_hooks.instruments.memory.checkpointing import checkpointing_of
from torchprof_hooks.instruments.memory.events import MemoryEvents, What
from torchprof_hooks.kernel.callbacks import CallListener
from torchprof_hooks.kernel.observer import Observer
from torchprof_hooks.kernel.torch_names.modules import caller_kwargs
from torchprof_hooks.kernel.torch_names.tensors import (
    storages_of,
    tensors_in,
    unnoticed,
)
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.profiles.memory import GrowingMemory, MemoryKind, MemoryStep
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


#: A step is kept if its peak is so near to the highest one; so many steps are recorded
#: for that after each new peak, as the same step may not come again.
_NEAR: Final = 0.98
_TRIES: Final = 3


class StepRecorder(Observer, CallListener):
    """Records steps until it has one whose peak is the highest, or nearly: at first,
    and again after a step with a higher peak. Only that one is kept.

    The core records the blocks. The calls of modules are noted here, with the tensors
    that they get and return.

    log: the core's meter of memory.
    highest: the highest peak of all steps that have ended.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._is_on = False
        self._tries = _TRIES
        self.highest = 0
        self._peak = 0  # of the one that is kept
        self._recorded = b""
        self._found: MemoryStep | None = None  # of what is kept

    def begin(self) -> None:
        """A step begins."""
        if self._tries > 0:
            self._is_on = True
            self.reading.listen(self, True)
            self._log.record(True)

    def end(self, peak_bytes: int) -> None:
        """The step has ended, and another one begins. peak_bytes: of the step."""
        if not self._is_on and peak_bytes <= self.highest:
            return  # as most of them
        if self._is_on:
            recorded = self._stopped()
            self._tries -= 1
            if recorded and peak_bytes > self._peak:
                self._recorded, self._found = recorded, None
                self._peak = peak_bytes
        if peak_bytes * _NEAR > self.highest:
            self._tries = _TRIES
        self.highest = max(self.highest, peak_bytes)
        if self._peak >= _NEAR * self.highest:
            self._tries = min(self._tries, 1)  # what optimizers keep comes after a step
        self.begin()

    def drop(self) -> None:
        """Measuring ends in the middle of a step."""
        if self._is_on:
            self._stopped()

    def _stopped(self) -> bytes:
        self._is_on = False
        self.reading.listen(self, False)
        recorded: bytes = self._log.take_events()
        return recorded

    def read(self) -> MemoryStep | None:
        """The step that is kept; None: there is none yet."""
        recorded, peak_bytes = self._recorded, self._peak
        if self._found is None and recorded:
            events = MemoryEvents(recorded, [*self.reading.sites])
            found = MemoryStep(
                peak_bytes,
                events.points(),
                checkpointing_of(events),
            )
            if self._recorded is not recorded:  # this is another thread than the one
                return found  # that is measured
            self._recorded, self._found = b"", found
        return self._found

    # As a listener

    def called(self, site: Site, args: Any) -> None:
        """A call of a module has begun."""
        if site.phase == "forward":
            self._log.note(What.CALLED, site.code, [])
            self._note(What.INPUT, site, [args, caller_kwargs()])

    def returned(self, site: Site, outputs: Any) -> None:
        """It has ended."""
        if site.phase == "forward":
            self._log.note(What.RETURNED, site.code, [])
            self._note(What.OUTPUT, site, [outputs])

    def aborted(self, site: Site) -> None:
        """An exception has ended it."""
        if site.phase == "forward":
            self._log.note(What.RETURNED, site.code, [])

    def _note(self, what: What, site: Site, values: list[Any]) -> None:
        with unnoticed():
            storages = [s for one in tensors_in(values) for s in storages_of(one)]
        if storages:
            self._log.note(what, site.code, storages)
