"""What the hot path appends, and the totals it is folded into."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

#: Numbers that one closed span appends: code of its site, start, end.
FIELDS: Final = 3
#: Length of the log at which it is folded: memory is bounded, and the numbers stay in
#: the processor's cache between being written and being read.
FOLD_AT: Final = FIELDS * 4096

_NEVER: Final = np.iinfo(np.int64).max


class SpanLog:
    """Closed spans as one flat list ``[code, start_ns, end_ns, code, ...]``, folded in
    batches into totals per site.

    After `fold`, the arrays have one item per site: `calls`, and of the durations the
    sum `total_ns`, `min_ns`, `max_ns` and the sum of squares `squares` (Python ints:
    exact, so that merging profiles is associative).
    """

    def __init__(self) -> None:
        self.entries: list[int] = []
        self.calls = np.zeros(0, np.int64)
        self.total_ns = np.zeros(0, np.int64)
        self.min_ns = np.zeros(0, np.int64)
        self.max_ns = np.zeros(0, np.int64)
        self.squares: list[int] = []
        self.first_ended: list[int] = []  # codes in the order of their first span
        #: Is given the spans of each batch, one row (code, start, end) each.
        self.on_fold: Callable[[Int64s], None] | None = None
        self._lock = threading.Lock()

    def fold(self) -> None:
        """Book the logged spans and empty the log."""
        with self._lock:  # a report may be asked for in another thread
            # Not clear(): what is appended in between stays in the log.
            count = len(self.entries)
            if not count:
                return
            spans = np.array(self.entries[:count], np.int64).reshape(-1, FIELDS)
            del self.entries[:count]
            self._book(spans[:, 0], spans[:, 2] - spans[:, 1])
            if self.on_fold is not None:
                self.on_fold(spans)

    def _book(self, codes: Int64s, durations: Int64s) -> None:
        self._grow(int(codes.max()) + 1)
        size = len(self.calls)
        counts = np.bincount(codes, minlength=size)
        if np.any(counts[self.calls == 0]):
            self._note_new(codes)
        self.calls += counts
        # Sums of a batch stay below 2**53 ns (104 days): exact in floating point.
        self.total_ns += np.bincount(codes, durations, size).astype(np.int64)
        np.minimum.at(self.min_ns, codes, durations)
        np.maximum.at(self.max_ns, codes, durations)
        squares = np.bincount(codes, durations.astype(np.float64) ** 2, size)
        for code in np.flatnonzero(squares):
            self.squares[code] += int(squares[code])

    def _note_new(self, codes: Int64s) -> None:
        met, first_index = np.unique(codes, return_index=True)
        in_order = met[np.argsort(first_index)]
        self.first_ended += [int(c) for c in in_order if not self.calls[c]]

    def _grow(self, size: int) -> None:
        missing = size - len(self.calls)
        if missing > 0:
            self.calls = np.pad(self.calls, (0, missing))
            self.total_ns = np.pad(self.total_ns, (0, missing))
            self.min_ns = np.pad(self.min_ns, (0, missing), constant_values=_NEVER)
            self.max_ns = np.pad(self.max_ns, (0, missing))
            self.squares.extend([0] * missing)
