"""Has the native core hear of operators."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from torchprof_hooks.capture.attach.attachments import Attachment

if TYPE_CHECKING:
    from torchprof_hooks.capture.tracking.tracker import Tracker


class OperatorsHeard(Attachment):
    """Torch's callback at operators, in the thread of a tracker: by it, the tracker
    hears of the operators that the thread calls. Its users are those who want that."""

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
