"""Which intervals are kept of the calls in one that goes on: a loop of many steps, in a
profiled function or in the forward of a module."""

from __future__ import annotations

import weakref
from bisect import bisect_left, bisect_right
from collections import deque
from itertools import accumulate
from typing import Final

from torchprof_hooks.capture.backward.ownership import FIELDS, NEWEST_RECORDS

#: Intervals kept in any case, the newest ones: graphs may be reached by other ways than
#: by what their call returned.
INTERVALS_KEPT: Final = 1024
#: Intervals kept of functions that are in no part, the newest ones: nothing tells when
#: their graphs die.
LOOSE_KEPT: Final = 1 << 14


def are_many(count: int) -> bool:
    """Whether there are so many intervals in open calls that it pays to tell parts
    apart, which takes longer."""
    return count > INTERVALS_KEPT


class Part:
    """Lives as long as the graph of a call that ended in a frame, or interrupted it:
    the nodes with numbers in ``[low, high)``."""

    __slots__ = ("__weakref__", "high", "low")

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high


class Parts:
    """Tells which intervals are still needed while a frame (see `Node`) is open.
    Intervals stay with the frame until it ends, except those of graphs that are gone: a
    loop would leave some behind in every step.

    look_at: how many intervals there are when those are looked for that can go.
    """

    def __init__(self) -> None:
        self._untied: deque[Part] = deque(maxlen=NEWEST_RECORDS)
        self._held: deque[Part] = deque(maxlen=NEWEST_RECORDS)
        self._begin(since=-1)

    def _begin(self, since: int) -> None:
        self._since = since
        self.look_at = 2 * INTERVALS_KEPT
        self._untied.clear()
        self._held.clear()
        # With low and high of each, which are needed when it has died.
        self._parts: list[tuple[int, int, weakref.ref[Part]]] = []
        self._count = 0

    def add(self, part: Part, since: int, count: int, is_tied: bool) -> None:
        """Add a part of the outermost frame.

        since: number of the first node that the frame can own.
        count: how many intervals there are now.
        is_tied: whether the graph holds the part; else it is kept for a while.
        """
        if since != self._since:
            self._begin(since)
        if count == self._count:
            return  # the part has no intervals
        self._count = count
        if not is_tied:
            self._untied.append(part)
        self._parts.append((part.low, part.high, weakref.ref(part)))

    def hold(self, part: Part, since: int) -> None:
        """Keep all in `part`: what ended before it was known that it is in a frame.

        since: see `add`.
        """
        if since != self._since:
            self._begin(since)
        self._held.append(part)
        self._parts.append((part.low, part.high, weakref.ref(part)))

    def living(self, intervals: list[int]) -> list[int]:
        """The intervals, without those in dead parts and the oldest ones in no part."""
        known = _Ranges([(low, high) for low, high, _ in self._parts])
        living = [part for part in self._parts if part[2]() is not None]
        alive = _Ranges([(low, high) for low, high, _ in living])
        kept: list[int] = []  # backwards, and flat: lists make Python collect garbage
        left, loose = INTERVALS_KEPT, LOOSE_KEPT
        newest = intervals[-FIELDS * left :][1::FIELDS]
        since = min(newest, default=0)  # next time, their dead parts have to be known
        self._parts = [p for p in self._parts if p[1] > since or p[2]() is not None]
        for end in range(len(intervals), 0, -FIELDS):
            code, low, high = intervals[end - FIELDS : end]
            is_loose = not known.contain(low, high)
            if left > 0 or (is_loose and loose > 0) or alive.meet(low, high):
                kept += (high, low, code)
            left -= 1
            loose -= is_loose
        self._count = len(kept) // FIELDS
        self.look_at = 2 * max(self._count, INTERVALS_KEPT)
        kept.reverse()
        return kept


class _Ranges:
    """Ranges of numbers, some inside of others."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        ranges.sort()
        self._lows = [low for low, _ in ranges]
        self._reach = [*accumulate((high for _, high in ranges), max)]

    def contain(self, low: int, high: int) -> bool:
        """Whether all of ``[low, high)`` is in one of them."""
        before = bisect_right(self._lows, low)
        return before > 0 and self._reach[before - 1] >= high

    def meet(self, low: int, high: int) -> bool:
        """Whether any of ``[low, high)`` is in one of them."""
        before = bisect_left(self._lows, high)
        return before > 0 and self._reach[before - 1] > low
