"""Tells trackers when torch.compile compiles something."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from torchprof_hooks.capture.attach.attachments import Attachment
from torchprof_hooks.capture.attach.interruptions import begin_compiling, end_compiling
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.torch_names.compiler import (
    unwatch_compilations,
    watch_compilations,
)

if TYPE_CHECKING:
    from torchprof_hooks.capture.tracking.tracker import Tracker


class Compilations(Attachment):
    """Is told by torch.compile of the begin and the end of what it compiles; its users
    are trackers.

    Torch tells of the first begin and the last end, if it compiles several at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._begun: list[tuple[Tracker, Site]] = []
        self._callbacks = self._begin, self._end

    def put_on(self) -> None:
        """Be told, if torch.compile is in use."""
        watch_compilations(*self._callbacks)

    def take_off(self) -> bool:
        """Do not be told any more."""
        unwatch_compilations(*self._callbacks)
        self._begun = []
        return True

    def _begin(self, *compilation: object) -> None:
        with self._lock:
            begun = [(told, begin_compiling(told)) for told in self.users]
            self._begun = [(told, site) for told, site in begun if site is not None]

    def _end(self, *compilation: object) -> None:
        with self._lock:
            begun, self._begun = self._begun, []
            for told, site in reversed(begun):
                end_compiling(told, site)


#: The one there is.
compilations: Final = Compilations()
