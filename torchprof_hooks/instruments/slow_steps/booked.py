"""What was booked in a step."""

from __future__ import annotations

from typing import NamedTuple

from torchprof_hooks.kernel.reference.span_log import Int64s, padded


class Booked(NamedTuple):
    """What was booked in a step, or in several: nanoseconds by the code of the site, of
    calls that have ended in it.

    objects: about how many objects Python had at its end (see `SlowStep`).
    """

    duration_ns: int
    number: int
    booked_ns: Int64s
    objects: int = 0

    def __lt__(self, other: Booked) -> bool:  # type: ignore[override]
        """In a heap, the shortest step comes first."""
        return self.duration_ns < other.duration_ns

    def __add__(self, other: Booked) -> Booked:  # type: ignore[override]
        size = max(len(self.booked_ns), len(other.booked_ns))
        return Booked(
            self.duration_ns + other.duration_ns,
            0,
            padded(self.booked_ns, size) + padded(other.booked_ns, size),
        )
