"""Memory, in bytes: how much calls took, and the peak of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torchprof_hooks.profiles.names import Phase, united


@dataclass(frozen=True, slots=True)
class MemoryTotals:
    """The memory of calls of one kind, in bytes.

    used_bytes: bytes that the allocator handed out during the calls. Freed bytes count,
        too (gross); where only the C allocator could be asked, they are subtracted
        (net), so that the result can be negative.
    acquired_bytes: bytes that the allocator took from the device, or from the system.
    retained_bytes: bytes in use when the calls returned, less those in use when they
        began: what forward leaves behind, mostly for backward. Other phases free memory
        that they did not allocate, so there it means little.
    peak_bytes: how far the memory in use rose above its level at the begin of a call,
        with inner calls: the most of all calls.
    """

    used_bytes: int = 0
    acquired_bytes: int = 0
    retained_bytes: int = 0
    peak_bytes: int = 0

    def __add__(self, other: MemoryTotals) -> MemoryTotals:
        # Mostly, memory was not measured.
        if other is NO_MEMORY:
            return self
        if self is NO_MEMORY:
            return other
        return MemoryTotals(
            self.used_bytes + other.used_bytes,
            self.acquired_bytes + other.acquired_bytes,
            self.retained_bytes + other.retained_bytes,
            max(self.peak_bytes, other.peak_bytes),
        )

    def without(self, other: MemoryTotals) -> MemoryTotals:
        """These bytes without those of some of the calls, `other`. The peak stays: any
        of the remaining calls may have set it."""
        if other == NO_MEMORY:
            return self
        return MemoryTotals(
            self.used_bytes - other.used_bytes,
            self.acquired_bytes - other.acquired_bytes,
            self.retained_bytes - other.retained_bytes,
            self.peak_bytes,
        )

    def scaled(self, calls: float) -> MemoryTotals:
        """The bytes of `calls` times as many calls. The peak stays: it is per call."""
        if self is NO_MEMORY:
            return self
        return MemoryTotals(
            round(self.used_bytes * calls),
            round(self.acquired_bytes * calls),
            round(self.retained_bytes * calls),
            self.peak_bytes,
        )

    def with_peak(self, peak_bytes: int) -> MemoryTotals:
        """These bytes with another peak."""
        if peak_bytes == self.peak_bytes:
            return self
        return MemoryTotals(
            self.used_bytes, self.acquired_bytes, self.retained_bytes, peak_bytes
        )


NO_MEMORY: Final = MemoryTotals()


@dataclass(frozen=True, slots=True)
class MemorySummary:
    """Memory over a whole run.

    source: whose memory it is: "cuda:0", "cpu"; of merged runs, "cuda:0, cuda:1".
    peak_bytes: the highest level in use.
    peak_path, peak_phase: the call that set it.
    unavailable: why memory could not be measured. The rest is empty then, unless runs
        were merged of which only some were measured.
    """

    source: str = ""
    peak_bytes: int = 0
    peak_path: tuple[str, ...] = ()
    peak_phase: Phase = "outside"
    unavailable: str = ""

    def merge(self, other: MemorySummary) -> MemorySummary:
        """Both runs as one, whatever their order: the higher peak with its call."""
        peak_bytes, path, phase = max(
            (run.peak_bytes, run.peak_path, run.peak_phase) for run in (self, other)
        )
        return MemorySummary(
            source=united(self.source, other.source, ", "),
            peak_bytes=peak_bytes,
            peak_path=path,
            peak_phase=phase,
            unavailable=united(self.unavailable, other.unavailable, "; "),
        )


def merge_summaries(
    left: MemorySummary | None, right: MemorySummary | None
) -> MemorySummary | None:
    """Both as one, or the one that is not None."""
    if left is None or right is None:
        return left or right
    return left.merge(right)
