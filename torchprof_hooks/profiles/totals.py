"""The numbers of a row: calls, times, bytes and operations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Final

from torchprof_hooks.profiles.memory import NO_MEMORY, MemoryTotals


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums over calls of one kind, times in nanoseconds.

    A new field is also named in `__add__` and `with_cumulative` here (and in
    `without_calls`, if it is the calls' own), and in `_after` of parts.py, which makes
    the loop of the whole less the first step.

    calls: how many calls ended.
    self_ns: time in the calls themselves, without the calls that they made.
    cumulative_ns: time with the calls that they made in the same phase. Where a call
        contains others of the same group, their time counts once.
    min_ns, max_ns: shortest and longest call, with the calls that it made (0: none).
    duration_ns, squares_ns2: the sum of the calls' durations, and of the squares of
        these; `mean_ns` and `std_ns` are computed from them.
    device_self_ns, device_cumulative_ns: the same times on the device's own clock
        (0 where no device was measured).
    flops: floating-point operations of the calls themselves, without the calls that
        they made, as far as torch has formulas for them (matrix products, convolutions,
        attention); 0 where it has none, or functions were not measured. A multiply-add
        is two. "backward" has those that compute gradients; "recompute" those of
        forward, done again.
    flops_cumulative: the same with the calls that they made in the same phase.
    counted_ns, counted_cumulative_ns: how much of `self_ns`, and of `cumulative_ns`,
        was in calls whose operations are known. The rest is time without formulas.
    memory, memory_cumulative: bytes, without and with the calls that they made in the
        same phase (0 where memory was not measured). In both, a peak includes inner
        calls.
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
    memory: MemoryTotals = NO_MEMORY
    memory_cumulative: MemoryTotals = NO_MEMORY
    flops: int = 0
    flops_cumulative: int = 0
    counted_ns: int = 0
    counted_cumulative_ns: int = 0

    @property
    def mean_ns(self) -> float:
        """Mean duration of a call, 0.0 without calls."""
        return self._per_call(self.duration_ns)

    @property
    def std_ns(self) -> float:
        """Standard deviation of the calls' durations (of the population: divided by
        the number of calls), 0.0 without calls."""
        mean_ns2 = self._per_call(self.squares_ns2)
        return sqrt(max(mean_ns2 - self.mean_ns**2, 0.0))

    @property
    def mean_used_bytes(self) -> float:
        """Bytes handed out during a call, with inner calls, 0.0 without calls."""
        return self._per_call(self.memory_cumulative.used_bytes)

    @property
    def mean_retained_bytes(self) -> float:
        """Bytes that a call leaves in use, with inner calls, 0.0 without calls."""
        return self._per_call(self.memory_cumulative.retained_bytes)

    def __add__(self, other: Totals) -> Totals:
        lows = [t.min_ns for t in (self, other) if t.calls]
        return Totals(  # see `with_cumulative`
            self.calls + other.calls,
            self.self_ns + other.self_ns,
            self.cumulative_ns + other.cumulative_ns,
            min(lows, default=0),
            max(self.max_ns, other.max_ns),
            self.duration_ns + other.duration_ns,
            self.squares_ns2 + other.squares_ns2,
            self.device_self_ns + other.device_self_ns,
            self.device_cumulative_ns + other.device_cumulative_ns,
            self.memory + other.memory,
            self.memory_cumulative + other.memory_cumulative,
            self.flops + other.flops,
            self.flops_cumulative + other.flops_cumulative,
            self.counted_ns + other.counted_ns,
            self.counted_cumulative_ns + other.counted_cumulative_ns,
        )

    def with_cumulative(
        self,
        host_ns: int,
        device_ns: int,
        memory: MemoryTotals = NO_MEMORY,
        flops: int = 0,
        counted_ns: int = 0,
    ) -> Totals:
        """The same numbers with these cumulative times, bytes and operations."""
        return Totals(  # every row needs it, and `replace` takes three times as long
            self.calls,
            self.self_ns,
            host_ns,
            self.min_ns,
            self.max_ns,
            self.duration_ns,
            self.squares_ns2,
            self.device_self_ns,
            device_ns,
            self.memory,
            memory,
            self.flops,
            flops,
            self.counted_ns,
            counted_ns,
        )

    def counted(self) -> Totals:
        """The same numbers, for calls whose operations are known: `counted_ns` is all
        own time."""
        return replace(self, counted_ns=max(self.self_ns, 0))

    def without_calls(self) -> Totals:
        """Only own time, bytes and operations, to be added to an outer call's."""
        return Totals(
            self_ns=self.self_ns,
            device_self_ns=self.device_self_ns,
            memory=self.memory.with_peak(0),
            flops=self.flops,
            counted_ns=self.counted_ns,
        )

    def _per_call(self, amount: int) -> float:
        return amount / self.calls if self.calls else 0.0


#: Fields that rows have; cells leave them at 0, and they are in no file.
DERIVED: Final = frozenset(
    ("cumulative_ns", "device_cumulative_ns", "memory_cumulative", "flops_cumulative")
) | {"counted_ns", "counted_cumulative_ns"}

#: The totals where nothing was booked.
NOTHING: Final = Totals()
