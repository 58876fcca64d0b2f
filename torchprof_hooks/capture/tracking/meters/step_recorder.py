"""Records what happens to memory in one step, block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from torchprof_hooks.capture.record.checkpointing import checkpointing_of
from torchprof_hooks.capture.record.memory_events import MemoryEvents, What
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.torch_names.inputs import tensors_in
from torchprof_hooks.capture.torch_names.modules import caller_kwargs
from torchprof_hooks.capture.torch_names.storages import storages_of, unnoticed
from torchprof_hooks.profiles.memory_step import MemoryStep

if TYPE_CHECKING:
    from torchprof_hooks.capture.tracking.tracker import Tracker

#: A step is kept if its peak is so near to the highest one; so many steps are recorded
#: for that after each new peak, as the same step may not come again.
_NEAR: Final = 0.98
_TRIES: Final = 3


class StepRecorder:
    """Records steps until it has one whose peak is the highest, or nearly: at first,
    and again after a step with a higher peak. Only that one is kept.

    The core records the blocks. The calls of modules are noted here, with the tensors
    that they get and return.

    log: the core's meter of memory.
    highest: the highest peak of all steps that have ended.
    """

    def __init__(self, log: Any, tracker: Tracker) -> None:
        self._log = log
        self._tracker = tracker
        self._is_on = False
        self._tries = _TRIES
        self.highest = 0
        self._peak = 0  # of the one that is kept
        self._recorded = b""
        self._found: MemoryStep | None = None  # of what is kept

    def begin(self) -> None:
        """A step begins. Nothing is recorded for trackers that call back themselves."""
        if self._tries > 0 and (self._is_on or self._tracker.callbacks is None):
            self._is_on = True
            self._tracker.callbacks = self
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
        self._tracker.callbacks = None
        recorded: bytes = self._log.take_events()
        return recorded

    def read(self) -> MemoryStep | None:
        """The step that is kept; None: there is none yet."""
        recorded, peak_bytes = self._recorded, self._peak
        if self._found is None and recorded:
            events = MemoryEvents(recorded, [*self._tracker.sites])
            found = MemoryStep(
                peak_bytes,
                events.points(),
                events.highest(),
                checkpointing_of(events),
            )
            if self._recorded is not recorded:  # this is another thread than the one
                return found  # that is measured
            self._recorded, self._found = b"", found
        return self._found

    # What the core calls (see `Cursor.callbacks`)

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

    def forget(self, module: torch.nn.Module) -> None:
        """Nothing is kept of modules."""

    def _note(self, what: What, site: Site, values: list[Any]) -> None:
        with unnoticed():
            storages = [s for one in tensors_in(values) for s in storages_of(one)]
        if storages:
            self._log.note(what, site.code, storages)
