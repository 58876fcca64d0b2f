"""The newest calls, one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from torchprof_hooks.capture.span_log import Int64s

NameOf = Callable[[int], str]


class CallHistory:
    """Keeps the newest `size` spans that logs were folded into, as compact arrays.

    Spans come in batches, each with a function that tells a site's name from its code;
    names are looked up only when somebody reads the history.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._batches: deque[tuple[NameOf, Int64s]] = deque()
        self._kept = 0

    def add(self, name_of: NameOf, spans: Int64s) -> None:
        """Append spans, one row (code, start, end) each, and drop the oldest beyond
        `size`."""
        self._batches.append((name_of, spans))
        self._kept += len(spans)
        while self._kept > self._size:
            name_of, oldest = self._batches.popleft()
            surplus = min(self._kept - self._size, len(oldest))
            self._kept -= surplus
            if surplus < len(oldest):
                self._batches.appendleft((name_of, oldest[surplus:].copy()))

    def newest(self) -> Iterator[tuple[str, int]]:
        """(name, nanoseconds) of the kept calls, oldest first."""
        for name_of, spans in self._batches:
            for code, start_ns, end_ns in spans.tolist():
                yield name_of(code), end_ns - start_ns
