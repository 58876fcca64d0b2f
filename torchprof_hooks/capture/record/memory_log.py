"""A log of the memory that each closed call took, and the sums it is folded into."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from torchprof_hooks.capture.core.span_log import FlatLog, Int64s, padded

#: Numbers that one closed call appends: code of its site, used, acquired, retained,
#: rise (see `MemoryTotals`; all with inner calls).
FIELDS: Final = 5
#: Length of the log at which it is folded.
FOLD_AT: Final = FIELDS * 2048


class MemorySums(NamedTuple):
    """Sums by code of the site (see `MemoryTotals`), all with inner calls."""

    used: Int64s
    acquired: Int64s
    retained: Int64s
    peak: Int64s


class MemoryLog(FlatLog):
    """Closed calls, with the memory that each took.

    After `fold`, the arrays have one item per site: the sums `used`, `acquired` and
    `retained`, and the highest rise, `peak`.
    """

    def __init__(self) -> None:
        super().__init__(FIELDS)
        self.used = np.zeros(0, np.int64)
        self.acquired = np.zeros(0, np.int64)
        self.retained = np.zeros(0, np.int64)
        self.peak = np.zeros(0, np.int64)

    def _book(self, calls: Int64s) -> None:
        codes = calls[:, 0]
        size = int(codes.max()) + 1
        self.used = padded(self.used, size)
        self.acquired = padded(self.acquired, size)
        self.retained = padded(self.retained, size)
        self.peak = padded(self.peak, size)
        np.add.at(self.used, codes, calls[:, 1])
        np.add.at(self.acquired, codes, calls[:, 2])
        np.add.at(self.retained, codes, calls[:, 3])
        np.maximum.at(self.peak, codes, calls[:, 4])
