"""Has the native core hear of operators."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from torchprof_hooks.capture.attach.attachments import Attachment

if TYPE_CHECKING:
    from torchprof_hooks.capture.tracking.tracker import Tracker


class OperatorsHeard(Attachment):
    """A callback of torch's, in the thread of a tracker, which hears of the operators
    that this thread calls. Its users are those who want the tracker to hear of them."""

    def __init__(self, tracker: Tracker) -> None:
        super().__init__()
        self._tracker = weakref.ref(tracker)

    def put_on(self) -> None:
        self._turn(True)

    def take_off(self) -> bool:
        self._turn(False)
        return True

    def _turn(self, on: bool) -> None:
        tracker = self._tracker()
        if tracker is not None:
            tracker.hear_operators(on)
