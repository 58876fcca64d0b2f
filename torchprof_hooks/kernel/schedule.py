"""Which steps of a thread are measured: all, or some, in blocks; and how long those of
each kind took."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from enum import Enum
from math import inf
from time import perf_counter_ns

from torchprof_hooks.kernel.step_counter import StepCounter
from torchprof_hooks.profiles.measured_steps import BLOCKS_KEPT


class Kind(Enum):
    """What is done with the steps of a block."""

    MEASURED = "all that is wanted"
    COUNTED = "nothing is measured"
    TRACED = "they are disturbed, and kept apart"


class Blocks:
    """Says of which kind the next step is, and how much longer measured steps took.

    Measured and counted steps take turns. A trace may come in the middle of a block,
    which then goes on.

    steps, every: so many steps are measured, of each `every`; None: all, or once.
    kind: of the steps now. usual: the same, but for a trace.
    longer: for blocks of measured steps, by how much longer their median step took than
        that of the counted block before them: what is rare, such as saving, is no cost
        of measuring, in whichever block it is.
    """

    def __init__(self, steps: int | None, every: int | None) -> None:
        rest = None if steps is None or every is None else every - steps
        self._lengths = {Kind.MEASURED: steps, Kind.COUNTED: rest}
        self.kind = self.usual = Kind.MEASURED
        self._ends_at = self._length()  # after so many steps of the thread
        self._trace_began = 0
        self.longer: deque[float] = deque(maxlen=BLOCKS_KEPT)
        self._counted_ns = 0  # the median step of the last block that was counted

    def next_kind(self, steps: int) -> Kind:
        """Of the step that comes after so many ones of the thread."""
        if self.kind is Kind.TRACED or steps < self._ends_at:
            return self.usual
        return Kind.COUNTED if self.usual is Kind.MEASURED else Kind.MEASURED

    def go_on(
        self, kind: Kind, steps: int, counters: Mapping[Kind, StepCounter]
    ) -> None:
        """Steps of this kind come, after so many ones of the thread. counters: of the
        steps of each kind until now."""
        if self.kind is Kind.TRACED:
            self._ends_at += steps - self._trace_began
        self.kind = kind
        if kind is Kind.TRACED:
            self._trace_began = steps
        elif kind is not self.usual:
            self._compare(counters[self.usual].latest_ns)
            self.usual = kind
            self._ends_at = steps + self._length()
            counters[kind].latest_ns.clear()

    def _length(self) -> float:
        length = self._lengths[self.usual]
        return inf if length is None else length

    def _compare(self, latest_ns: Iterable[int]) -> None:
        """A block has ended, whose last steps took so long."""
        median_ns = _median(latest_ns)
        if self.usual is Kind.COUNTED:
            self._counted_ns = median_ns
        elif self._counted_ns and median_ns:
            self.longer.append(median_ns / self._counted_ns - 1)


def _median(values: Iterable[int]) -> int:
    """The shorter of the two in the middle, so that of two steps, one that is rare does
    not count; 0 of none. That of `statistics` takes long to import."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else 0


class WallTime:
    """The time of a thread, by kind of steps. Another thread may read.

    began_ns: what comes after this moment is not booked yet; 0: nothing is measured.
    """

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._booked_ns = Counter[Kind]()
        self.began_ns = 0

    def book(self, kind: Kind | None = None) -> int:
        """Book the time until now, which is that of steps of this kind, by default of
        the running ones. Returns when that is."""
        began_ns, now_ns = self.began_ns, perf_counter_ns()
        if began_ns:
            self._booked_ns[kind or self._blocks.kind] += now_ns - began_ns
            self.began_ns = now_ns
        return now_ns

    def so_far_ns(self, kind: Kind, end_ns: int | None = None) -> int:
        """The time of the steps of this kind, with that which is not booked yet."""
        began_ns = self.began_ns  # once: another thread may read
        if not began_ns or kind is not self._blocks.kind:
            return self._booked_ns[kind]
        return self._booked_ns[kind] + max((end_ns or perf_counter_ns()) - began_ns, 0)
