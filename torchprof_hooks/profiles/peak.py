"""The most that a device can do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that a device can do.

    flops: floating-point operations per second, without sparsity.
    source: where the number comes from.
    """

    flops: int
    source: str


def higher(one: Peak | None, other: Peak | None) -> Peak | None:
    """The peak of merged runs, in any order: the higher one, so that no share of the
    peak is reported too high."""
    both = [(peak.flops, peak.source) for peak in (one, other) if peak]
    return Peak(*max(both)) if both else None
