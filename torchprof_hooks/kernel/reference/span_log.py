"""A log to which each closed call is appended, and the sums it is folded into."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from torchprof_hooks.kernel.reference.cursor import Cursor

Int64s = np.ndarray[Any, np.dtype[np.int64]]  # numpy.typing is slow to import

#: Numbers that one closed span appends: code of its site, start, end.
FIELDS: Final = 3
#: Length of the log at which it is folded: memory is bounded, and the numbers stay in
#: the processor's cache between being written and being read.
FOLD_AT: Final = FIELDS * 4096

_NEVER: Final = np.iinfo(np.int64).max
#: Where nothing was booked.
NO_SUMS: Final[Int64s] = np.zeros(0, np.int64)


class SpanLog:
    """Closed spans as one flat list, ``[code, start_ns, end_ns, code, ...]``, which are
    folded in batches into sums per site.

    After `fold`, the arrays have one item per site: `calls`, and of the durations the
    sum `total_ns`, `min_ns`, `max_ns` and the sum of squares `squares` (Python ints:
    exact, so that merging profiles is associative).
    """

    def __init__(self) -> None:
        self.entries: list[int] = []
        #: Called with each batch: an array with one row per call.
        self.on_fold: Callable[[Int64s], None] | None = None
        self._lock = threading.RLock()
        self._is_folding = False
        self.calls = np.zeros(0, np.int64)
        self.total_ns = np.zeros(0, np.int64)
        self.min_ns = np.zeros(0, np.int64)
        self.max_ns = np.zeros(0, np.int64)
        self.squares: list[int] = []
        self._folded = 0
        self.first_ended: list[int] = []  # codes in the order of their first span
        self._marked_ns = NO_SUMS

    @property
    def spans(self) -> int:
        """How many spans have been closed."""
        return self._folded + len(self.entries) // FIELDS

    @property
    def of_step_ns(self) -> Int64s:
        """What was booked on each site since the last `end_step`."""
        self.fold()
        return self.total_ns - padded(self._marked_ns, len(self.total_ns))

    def end_step(self) -> None:
        """A step has ended, or an evaluation call."""
        self.fold()
        self._marked_ns = self.total_ns.copy()

    def fold(self) -> None:
        """Book the logged calls and empty the log."""
        with self._lock:  # a report may be asked for in another thread
            if self._is_folding:  # the handler of a signal calls modules, or reports
                return
            self._is_folding = True
            try:
                self._fold()
            finally:
                self._is_folding = False

    def _fold(self) -> None:
        # Not clear(): what is appended in between stays in the log.
        count = len(self.entries) // FIELDS * FIELDS
        if not count:
            return
        calls = np.fromiter(self.entries, np.int64, count).reshape(-1, FIELDS)
        del self.entries[:count]
        self._book(calls)
        if self.on_fold is not None:
            self.on_fold(calls)

    def _book(self, calls: Int64s) -> None:
        """Add a batch of calls to the sums."""
        self._folded += len(calls)
        codes, durations = calls[:, 0], calls[:, 2] - calls[:, 1]
        narrow = np.uint16 if codes.max() < 1 << 16 else np.int64
        order = np.argsort(codes.astype(narrow), kind="stable")  # a radix sort
        sorted_codes, sorted_ns = codes[order], durations[order]
        starts = np.flatnonzero(np.diff(sorted_codes, prepend=-1))
        met = sorted_codes[starts]
        self._grow(int(met[-1]) + 1)
        if not self.calls[met].all():
            new = met[self.calls[met] == 0]
            first_spans = order[starts][self.calls[met] == 0]
            self.first_ended += new[np.argsort(first_spans)].tolist()
        self.calls[met] += np.diff(starts, append=len(codes))
        self.total_ns[met] += np.add.reduceat(sorted_ns, starts)
        self.min_ns[met] = np.minimum(
            self.min_ns[met], np.minimum.reduceat(sorted_ns, starts)
        )
        self.max_ns[met] = np.maximum(
            self.max_ns[met], np.maximum.reduceat(sorted_ns, starts)
        )
        squares = np.add.reduceat(sorted_ns.astype(np.float64) ** 2, starts)
        for code, square in zip(met.tolist(), squares.tolist(), strict=True):
            self.squares[code] += int(square)

    def _grow(self, size: int) -> None:
        # Each by its own length: an interrupt may have let only some of them grow.
        self.calls = padded(self.calls, size)
        self.total_ns = padded(self.total_ns, size)
        self.min_ns = padded(self.min_ns, size, _NEVER)
        self.max_ns = padded(self.max_ns, size)
        self.squares.extend([0] * (size - len(self.squares)))


class Times(NamedTuple):
    """What a cursor has booked, and what is open in it, all at one moment.

    calls, total_ns, min_ns, max_ns, squares: of calls that have ended; see `SpanLog`.
    open_ns: code and nanoseconds so far of each call that is open, innermost first,
        without what interrupted it; one flat array.
    """

    calls: Int64s
    total_ns: Int64s
    min_ns: Int64s
    max_ns: Int64s
    squares: list[int]
    open_ns: Int64s


def times_of(cursor: Cursor) -> Times:
    """What a cursor of the reference core has measured so far. If another thread asks,
    a call that ends meanwhile is missing."""
    log = cursor.log
    log.fold()
    sums = (
        log.calls.copy(),
        log.total_ns.copy(),
        log.min_ns.copy(),
        log.max_ns.copy(),
    )
    squares = list(log.squares)
    now_ns, interrupted_ns, open_ns = perf_counter_ns(), 0, list[int]()
    for site in cursor.open_sites():
        so_far_ns = max(now_ns - site.start_ns - interrupted_ns, 0)
        open_ns += site.code, so_far_ns
        interrupted_ns += so_far_ns if site.is_entry else 0
    return Times(*sums, squares, np.array(open_ns, np.int64))


def padded(values: Int64s, size: int, filling: int = 0) -> Int64s:
    """`values`, made longer if there are fewer than `size`."""
    missing = size - len(values)
    if missing <= 0:
        return values
    return np.pad(values, (0, missing), constant_values=filling)


def at_length(sums: Int64s, size: int) -> Int64s:
    """The sums of the first `size` sites."""
    return padded(sums, size)[:size]


class MemorySums(NamedTuple):
    """Sums by code of the site (see `MemoryTotals`), all with inner calls."""

    used: Int64s
    acquired: Int64s
    retained: Int64s
    peak: Int64s
