"""What Python's full collections of garbage took of a thread's time."""

from __future__ import annotations

from time import perf_counter_ns
from typing import NamedTuple


class Collections(NamedTuple):
    """How many there were, and nanoseconds: their sum, the shortest, the longest, and
    the sum of their squares."""

    number: int = 0
    total_ns: int = 0
    shortest_ns: int = 0
    longest_ns: int = 0
    squares_ns2: int = 0

    def and_one(self, took_ns: int) -> Collections:
        """With one more."""
        return Collections(
            self.number + 1,
            self.total_ns + took_ns,
            min(self.shortest_ns, took_ns) if self.number else took_ns,
            max(self.longest_ns, took_ns),
            self.squares_ns2 + took_ns * took_ns,
        )


class GarbageLog:
    """Adds up collections.

    by_site: nanoseconds, by the code of the site that the thread was at. The calls that
        are open there, up to the first entry, took that much less themselves.
    """

    def __init__(self) -> None:
        self.by_site: dict[int, int] = {}
        self.collections = Collections()
        self._newest_ns = self._newest_took_ns = 0  # when it ended

    def add(self, code: int, took_ns: int) -> None:
        """A collection has ended, in the time of this site."""
        self.by_site[code] = self.by_site.get(code, 0) + took_ns
        self.collections = self.collections.and_one(took_ns)
        self._newest_ns, self._newest_took_ns = perf_counter_ns(), took_ns

    def since_ns(self, began_ns: int) -> int:
        """What one took that has ended since then, which is some microseconds ago."""
        return self._newest_took_ns if self._newest_ns > began_ns else 0

    def copy(self) -> GarbageLog:
        """What it is now; another thread may add meanwhile."""
        found = GarbageLog()
        found.collections, found.by_site = self.collections, dict(self.by_site)
        return found
