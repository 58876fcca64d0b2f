"""The newest calls, one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from torchprof_hooks.capture.core.span_log import Int64s
from torchprof_hooks.profiles.options import check_whole

Where = TypeVar("Where")


class CallHistory(Generic[Where]):
    """Keeps the newest `size` calls that logs were folded into, as compact arrays.

    Calls come in batches, each with a function that tells where a call was made from
    the code of its site; it is asked only when somebody reads the history.

    Raises:
        TypeError: `size` is no whole number.
        ValueError: it is negative.
    """

    def __init__(self, size: int) -> None:
        self._size = check_whole("history_size", size, least=0)
        self._batches: deque[tuple[Callable[[int], Where], Int64s]] = deque()
        self._kept = 0

    def add(self, place_of: Callable[[int], Where], calls: Int64s) -> None:
        """Append calls, one row (code of the site, numbers) each, and drop the oldest
        beyond `size`."""
        self._batches.append((place_of, calls))
        self._kept += len(calls)
        while self._kept > self._size:
            place_of, oldest = self._batches.popleft()
            surplus = min(self._kept - self._size, len(oldest))
            self._kept -= surplus
            if surplus < len(oldest):
                self._batches.appendleft((place_of, oldest[surplus:].copy()))

    def newest(self) -> Iterator[tuple[Where, list[int]]]:
        """(place, numbers) of the kept calls, oldest first."""
        for place_of, calls in self._batches:
            for code, *numbers in calls.tolist():
                yield place_of(code), numbers
