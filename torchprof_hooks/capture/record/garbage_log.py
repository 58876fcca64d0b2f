"""What Python's full collections of garbage took of a thread's time."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torchprof_hooks.capture.record.site import Site


class Collections(NamedTuple):
    """How many collections there were; of their durations, the sum, the shortest, the
    longest, and the sum of squares."""

    number: int = 0
    total_ns: int = 0
    shortest_ns: int = 0
    longest_ns: int = 0
    squares_ns2: int = 0

    def and_one(self, took_ns: int) -> Collections:
        """These collections and one more."""
        return Collections(
            self.number + 1,
            self.total_ns + took_ns,
            min(self.shortest_ns, took_ns) if self.number else took_ns,
            max(self.longest_ns, took_ns),
            self.squares_ns2 + took_ns * took_ns,
        )


class GarbageLog:
    """Adds up collections.

    by_site: nanoseconds, by the code of the site that the thread was at; to be
        subtracted from the time of that site and its callers, up to the first entry.
    newest_ns: when the last one ended.
    """

    def __init__(self) -> None:
        self.by_site: dict[int, int] = {}
        self.collections = Collections()
        self.newest_ns = self._newest_took_ns = self._newest_code = 0

    def add(self, code: int, took_ns: int) -> None:
        """A collection has ended, in the time of this site."""
        self.by_site[code] = self.by_site.get(code, 0) + took_ns
        self.collections = self.collections.and_one(took_ns)
        self._newest_took_ns, self._newest_code = took_ns, code
        self.newest_ns = perf_counter_ns()

    def since_ns(self, began_ns: int) -> int:
        """Duration of the collection that has ended since `began_ns`; 0 if none has.
        To be asked after so short a time that there cannot have been two."""
        return self._newest_took_ns if self.newest_ns > began_ns else 0

    def was_at(self, code: int, began_ns: int, end_ns: int) -> int:
        """Move a collection that has ended in between, if any, to this site, whose time
        it interrupted. Returns its duration, or 0."""
        if not began_ns < self.newest_ns <= end_ns:
            return 0
        took_ns = self._newest_took_ns
        self.by_site[self._newest_code] -= took_ns
        self.by_site[code] = self.by_site.get(code, 0) + took_ns
        self._newest_code = code
        return took_ns

    def was_no_cost(self, site: Site, began_ns: int, end_ns: int) -> None:
        """Take a collection that has ended in between, if any, out of the profiler
        overhead of `site`, which it interrupted: it is not overhead, but garbage."""
        if self.newest_ns > began_ns:  # seldom
            site.reading_ns -= self.was_at(site.code, began_ns, end_ns)

    def copy(self) -> GarbageLog:
        """A copy of the sums; another thread may add meanwhile."""
        found = GarbageLog()
        found.collections, found.by_site = self.collections, dict(self.by_site)
        return found
