"""Numbers of a row: how often, how long, how evenly."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True, slots=True)
class Totals:
    """What calls of one kind took, all in nanoseconds.

    calls: how many calls ended.
    self_ns: time in the calls themselves, without the calls that they made.
    cumulative_ns: time with the calls that they made in the same phase. Where calls of
        one group contain others of the group, that time counts once.
    min_ns, max_ns: shortest and longest call, with the calls that it made (0: none).
    duration_ns, squares_ns2: sums, over all calls, of their durations and of the
        squares of these; `mean_ns` and `std_ns` come from them.
    device_self_ns, device_cumulative_ns: the same times on the device's own clock
        (0 where no device was measured).
    """

    calls: int = 0
    self_ns: int = 0
    cumulative_ns: int = 0
    min_ns: int = 0
    max_ns: int = 0
    duration_ns: int = 0
    squares_ns2: int = 0
    device_self_ns: int = 0
    device_cumulative_ns: int = 0

    @property
    def mean_ns(self) -> float:
        """Mean duration of a call, 0.0 without calls."""
        return self.duration_ns / self.calls if self.calls else 0.0

    @property
    def std_ns(self) -> float:
        """Standard deviation of the calls' durations (of the population: divided by
        the number of calls), 0.0 without calls."""
        if not self.calls:
            return 0.0
        return sqrt(max(self.squares_ns2 / self.calls - self.mean_ns**2, 0.0))

    def __add__(self, other: Totals) -> Totals:
        lows = [t.min_ns for t in (self, other) if t.calls]
        return Totals(
            self.calls + other.calls,
            self.self_ns + other.self_ns,
            self.cumulative_ns + other.cumulative_ns,
            min(lows, default=0),
            max(self.max_ns, other.max_ns),
            self.duration_ns + other.duration_ns,
            self.squares_ns2 + other.squares_ns2,
            self.device_self_ns + other.device_self_ns,
            self.device_cumulative_ns + other.device_cumulative_ns,
        )

    def with_cumulative(self, host_ns: int, device_ns: int) -> Totals:
        """The same with these as cumulative times."""
        return Totals(
            self.calls,
            self.self_ns,
            host_ns,
            self.min_ns,
            self.max_ns,
            self.duration_ns,
            self.squares_ns2,
            self.device_self_ns,
            device_ns,
        )
