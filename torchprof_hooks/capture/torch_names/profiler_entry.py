"""The private functions through which Python starts and stops torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch.autograd.profiler

#: In the order in which a profiler goes through them.
_PREPARE, _ENABLE, _DISABLE = (
    "_prepare_profiler",
    "_enable_profiler",
    "_disable_profiler",
)


class ProfilerEntry:
    """Knows when profilers that are not ours begin and end.

    A profiler with a schedule prepares itself some steps before it starts, which can be
    seen nowhere; and one that starts while ours is running raises an error in its
    user's program. So these functions are replaced while somebody watches. Where torch
    does not have them, nothing is seen.

    is_in_use: whether a profiler that is not ours is prepared or running.
    """

    def __init__(self) -> None:
        self.is_in_use = False
        self._before_others: Callable[[], None] = lambda: None
        self._is_ours = False
        self._originals: dict[str, Callable[..., Any]] = {}
        self._wrappers: dict[str, Callable[..., Any]] = {}

    def watch(self, before_others: Callable[[], None]) -> None:
        """Begin to watch. `before_others` is called before a profiler that is not ours
        is prepared or started."""
        self._before_others = before_others
        for name in (_PREPARE, _ENABLE, _DISABLE):
            function = getattr(torch.autograd.profiler, name, None)
            if function is not None:
                self._originals[name] = function
                self._wrappers[name] = wrapper = self._watching(name, function)
                setattr(torch.autograd.profiler, name, wrapper)

    def unwatch(self) -> None:
        """Put the functions back, unless somebody replaced them after us: what they
        installed calls ours, which then only pass on."""
        self._before_others = lambda: None
        for name, wrapper in self._wrappers.items():
            if getattr(torch.autograd.profiler, name, None) is wrapper:
                setattr(torch.autograd.profiler, name, self._originals[name])

    @contextmanager
    def ours(self) -> Iterator[None]:
        """What is started and stopped inside is ours."""
        self._is_ours = True
        try:
            yield
        finally:
            self._is_ours = False

    def _watching(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def watching(*args: Any, **kwargs: Any) -> Any:
            if self._is_ours:
                return function(*args, **kwargs)
            if name != _DISABLE:
                self._before_others()
            result = function(*args, **kwargs)
            self.is_in_use = name != _DISABLE
            return result

        return watching
