"""The numbers of a row: calls, times, bytes and operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import reduce
from math import isqrt, sqrt
from operator import add, attrgetter
from typing import Any, Final

from torchprof_hooks.profiles.amounts import (
    Amounts,
    Large,
    Signed,
    inside,
    longest,
    shortest,
    summed,
    sums_of,
)
from torchprof_hooks.profiles.memory import NO_MEMORY, MemoryTotals
from torchprof_hooks.profiles.names import Phase


@dataclass(frozen=True, slots=True)
class Totals(Amounts):
    """The sums over calls of one kind, times in nanoseconds.

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

    calls: int = summed(of_calls=True)
    self_ns: Signed = summed()
    cumulative_ns: int = inside("self_ns")
    min_ns: int = shortest()
    max_ns: int = longest()
    duration_ns: int = summed(of_calls=True)
    squares_ns2: Large = summed(of_calls=True)
    device_self_ns: Signed = summed()
    device_cumulative_ns: int = inside("device_self_ns")
    memory: MemoryTotals = summed(NO_MEMORY)
    memory_cumulative: MemoryTotals = inside("memory", NO_MEMORY)
    flops: Large = summed()
    flops_cumulative: int = inside("flops")
    counted_ns: int = summed(is_derived=True)
    counted_cumulative_ns: int = inside("counted_ns")

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
        # In most phases, most rows have nothing.
        if self is NOTHING and other.calls:
            return other
        if other is NOTHING and self.calls:
            return self
        sums = sums_of(self, other)
        if not (self.calls and other.calls):  # the shortest of none is none, and not 0
            sums[_MIN] = self.min_ns if self.calls else other.calls and other.min_ns
        return Totals(*sums)

    def without(self, first: Totals) -> Totals:
        """The totals without those of some of the calls, `first`.

        The longest remaining call is not known, as the longest of all was mostly a
        first one. So it is bounded: by the sum of durations, less the shortest one for
        each other call; and by the root of the sum of squares.
        """
        left = self - first
        if not left.calls:
            memory = left.memory.with_peak(0)
            return replace(left, min_ns=0, max_ns=0, memory=memory)
        most_ns = min(
            left.duration_ns - (left.calls - 1) * left.min_ns,
            isqrt(max(left.squares_ns2, 0)),
        )
        return replace(left, max_ns=max(min(left.max_ns, most_ns), left.min_ns))

    @property
    def own(self) -> tuple[Any, ...]:
        """What belongs to the calls around, too: times, bytes and operations."""
        found: tuple[Any, ...] = _OWN(self)
        return found

    def with_inside(self, own: tuple[Any, ...]) -> Totals:
        """The same numbers, with the sums of `own` of these calls and of all that they
        made as the cumulative ones."""
        found = [*_VALUES(self)]  # every row needs it, and `replace` is slower
        for place, source in _INSIDE:
            found[place] = own[source]
        # The peak of a call includes its inner calls. That of an inner call may be
        # higher, as it counts from its own begin, if memory was freed before it.
        peak_bytes = self.memory.peak_bytes
        if self.calls or peak_bytes:
            found[_MEMORY] = found[_MEMORY].with_peak(peak_bytes)
        return Totals(*found)

    def counted(self) -> Totals:
        """The same numbers, for calls whose operations are known: `counted_ns` is all
        own time."""
        found = [*_VALUES(self)]
        found[_COUNTED] = max(self.self_ns, 0)
        return Totals(*found)

    def without_calls(self) -> Totals:
        """Only own time, bytes and operations, to be added to an outer call's."""
        own = dict(zip(_OWN_NAMES, self.own, strict=True))
        own["memory"] = self.memory.with_peak(0)
        return Totals(**own)

    def _per_call(self, amount: int) -> float:
        return amount / self.calls if self.calls else 0.0


#: Fields that rows have; cells leave them at 0, and they are in no file.
DERIVED: Final = frozenset(
    each.name for each in fields(Totals) if each.metadata.get("is_derived")
)
_NAMES: Final = [each.name for each in fields(Totals)]
_VALUES: Final = attrgetter(*_NAMES)
_MIN: Final = _NAMES.index("min_ns")
_COUNTED: Final = _NAMES.index("counted_ns")
_MEMORY: Final = _NAMES.index("memory_cumulative")
_OWN_NAMES: Final = [each.name for each in fields(Totals) if each.metadata.get("own")]
_OWN: Final = attrgetter(*_OWN_NAMES)
#: Places of cumulative fields, and those of what they are the sums of in `Totals.own`.
_INSIDE: Final = [
    (place, _OWN_NAMES.index(each.metadata["inside"]))
    for place, each in enumerate(fields(Totals))
    if "inside" in each.metadata
]

#: The totals where nothing was booked.
NOTHING: Final = Totals()
_HOWS: Final = [each.metadata.get("sum", add) for each in fields(Totals)]


def summed_phases(every: Iterable[Mapping[Phase, Totals]]) -> dict[Phase, Totals]:
    """The sums of rows, or of places, by phase."""
    found: dict[Phase, list[Totals]] = {}
    for phases in every:
        for phase, totals in phases.items():
            found.setdefault(phase, []).append(totals)
    return {phase: _sum_of(totals) for phase, totals in found.items()}


def _sum_of(every: Iterable[Totals]) -> Totals:
    """The sum, a field at a time: of many, that is faster than one by one."""
    some = [each for each in every if each is not NOTHING]
    if len(some) < 2:
        return sum(some, NOTHING)
    columns = zip(*map(_VALUES, some), strict=True)
    sums = [reduce(how, each) for how, each in zip(_HOWS, columns, strict=True)]
    sums[_MIN] = min((each.min_ns for each in some if each.calls), default=0)
    return Totals(*sums)
