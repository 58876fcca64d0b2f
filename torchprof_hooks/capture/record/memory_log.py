"""The sums of the memory that calls took."""

from __future__ import annotations

from typing import NamedTuple

from torchprof_hooks.capture.core.span_log import Int64s


class MemorySums(NamedTuple):
    """Sums by code of the site (see `MemoryTotals`), all with inner calls."""

    used: Int64s
    acquired: Int64s
    retained: Int64s
    peak: Int64s
