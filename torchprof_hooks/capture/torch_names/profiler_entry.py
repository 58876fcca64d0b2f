"""The private functions through which Python starts and stops torch's profilers."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

import torch.autograd.profiler
import torch.profiler

#: By module, in the order in which a profiler goes through them, and the last one.
_ENTRIES: Final = {
    "torch.autograd.profiler": (
        "_prepare_profiler",
        "_enable_profiler",
        "_disable_profiler",
    ),
    "torch.autograd.profiler_legacy": (
        "_enable_profiler_legacy",
        "_disable_profiler_legacy",
    ),
}


class ProfilerEntry:
    """Knows when profilers that are not ours begin and end, from its making on.

    A profiler with a schedule prepares itself some steps before it starts, which can be
    seen nowhere else; and one that starts while ours is running fails, or makes torch
    crash. So these functions are replaced by ones that look whose the call is. Where
    torch does not have them, nothing is seen.

    before_others: called before a profiler that is not ours is prepared or started.
    is_in_use: whether one is prepared or running.
    """

    def __init__(self, before_others: Callable[[], None]) -> None:
        self.is_in_use = _is_one_prepared()
        self._before_others = before_others
        self._own = threading.local()
        for module_name, (*begins, end) in _ENTRIES.items():
            module = sys.modules.get(module_name)
            for name in (*begins, end):
                function = getattr(module, name, None)
                if function is not None:
                    setattr(module, name, self._watching(function, name == end))

    @contextmanager
    def ours(self) -> Iterator[None]:
        """What this thread starts and stops inside is ours."""
        self._own.is_at_work = True
        try:
            yield
        finally:
            self._own.is_at_work = False

    def _watching(
        self, function: Callable[..., Any], is_end: bool
    ) -> Callable[..., Any]:
        @wraps(function)
        def watching(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._own, "is_at_work", False):
                return function(*args, **kwargs)
            if not is_end:
                self._before_others()
            was_in_use, self.is_in_use = self.is_in_use, True
            try:
                result = function(*args, **kwargs)
            except BaseException:
                self.is_in_use = was_in_use
                raise
            self.is_in_use = not is_end
            return result

        return watching


def _is_one_prepared() -> bool:
    """Whether a profiler has prepared itself already. That is asked once, before
    anything is watched, and takes some milliseconds."""
    preparing = torch.profiler.ProfilerAction.WARMUP
    return any(
        found.current_action == preparing
        for found in gc.get_objects()
        if type(found) is torch.profiler.profile
    )
