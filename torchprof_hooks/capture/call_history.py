"""The newest calls, one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from torchprof_hooks.capture.span_log import Int64s
from torchprof_hooks.profiles.names import Phase

_Described = Callable[[int], tuple[str, Phase]]


class CallHistory:
    """Keeps the newest `size` spans that logs were folded into, as compact arrays.

    Spans come in batches, each with a function that tells a site's name and phase from
    its code; names are looked up only when somebody reads the history.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._batches: deque[tuple[_Described, Int64s]] = deque()
        self._kept = 0

    def add(self, describe: _Described, spans: Int64s) -> None:
        """Append spans, one row (code, start, end) each, and drop the oldest beyond
        `size`."""
        self._batches.append((describe, spans[-self._size :]))
        self._kept += len(self._batches[-1][1])
        while self._kept > self._size:
            describe, oldest = self._batches.popleft()
            surplus = self._kept - self._size
            if len(oldest) > surplus:
                self._batches.appendleft((describe, np.array(oldest[surplus:])))
            self._kept -= min(surplus, len(oldest))

    def newest(self, phases: tuple[Phase, ...]) -> Iterator[tuple[str, int]]:
        """(name, nanoseconds) of the kept calls in these phases, oldest first."""
        for describe, spans in self._batches:
            for code, start_ns, end_ns in spans.tolist():
                name, phase = describe(code)
                if phase in phases:
                    yield name, end_ns - start_ns
