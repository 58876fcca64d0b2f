"""Shows a tracker the calls of a few modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from torchprof_hooks.capture.module_tap import ModuleTap
from torchprof_hooks.capture.tracker import Tracker

_NAME = "torchprof_hooks roots"


class RootTaps:
    """Hooks of their own on some modules, until `close`; nothing is to be seen of them
    in other modules, which cost nothing."""

    def __init__(self, tracker: Tracker, modules: Iterable[torch.nn.Module]) -> None:
        only = _OneTracker(tracker)
        self._taps = [ModuleTap(module, _NAME, self, only) for module in modules]

    def close(self) -> None:
        """Take the hooks off."""
        for tap in self._taps:
            tap.close()


class _OneTracker:
    """In place of a tracker for each thread: one, which knows its own."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    def here(self) -> Tracker:
        return self._tracker

    def acquire_for(self, owner: object) -> Callable[[], object]:
        return lambda: None
