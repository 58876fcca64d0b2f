"""The largest batch that fits into memory, from the peaks of two batch sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.memory_step import MemoryStep


@dataclass(frozen=True, slots=True)
class BatchFit:
    """How the peak of a step grows with the batch size.

    In each phase of a step, the most in use is taken to grow in proportion to the
    batch: so the peak is the highest of straight lines. (In small batches, it may be
    in the optimizer's step, and in larger ones in backward.)

    memory_bytes: what it is to fit into.
    measured: the peaks that were measured, by batch size: two.
    largest: the largest batch size that fits; 0: not even 1 does.
    """

    memory_bytes: int
    measured: Mapping[int, int]
    largest: int
    _lines: tuple[tuple[float, float], ...]

    def peak_bytes(self, batch_size: int) -> int:
        """The predicted peak of a step."""
        return _peak(self._lines, batch_size)

    @property
    def each_bytes(self) -> int:
        """What one more sample adds, in batches of the largest size."""
        size = max(self.largest, *self.measured)
        return self.peak_bytes(size + 1) - self.peak_bytes(size)


def largest_batch(profiles: Mapping[int, ProfileData], memory_bytes: int) -> BatchFit:
    """The largest batch size whose step fits into so many bytes.

    profiles: of the same program with two batch sizes, by these: each with
        ``memory=True`` and a few steps.
    memory_bytes: in use by tensors: on a device, leave some room for what its allocator
        cannot use, and for libraries.

    Raises:
        ValueError: there are not two batch sizes, memory was not measured by owner,
            these are different programs, or memory does not grow with the batch.
    """
    if len(profiles) != 2 or min(profiles) < 1 or memory_bytes < 1:
        raise ValueError(
            "give the profiles of two different batch sizes, both at least 1, and how "
            "many bytes there are"
        )
    (small, one), (large, other) = sorted(profiles.items())
    if not _are_alike(one, other):
        raise ValueError(
            "these are profiles of different programs: few modules have the same name"
        )
    before, after = _step_of(one, small), _step_of(other, large)
    lines = _lines(before, small, after, large)
    if max(slope for _, slope in lines) <= 0:
        raise ValueError(
            f"memory does not grow with the batch: the peak of a step is "
            f"{before.peak_bytes} bytes for {small}, and {after.peak_bytes} for {large}"
        )
    fitting = (
        int((memory_bytes - base) // slope) for base, slope in lines if slope > 0
    )
    largest = max(min(fitting), 0)
    if _peak(lines, largest) > memory_bytes:  # what does not grow is too much already
        largest = 0
    measured = {small: before.peak_bytes, large: after.peak_bytes}
    return BatchFit(memory_bytes, measured, largest, lines)


def _are_alike(one: ProfileData, other: ProfileData) -> bool:
    names, others = set(one.modules), set(other.modules)
    return 2 * len(names & others) > len(names | others)


def _step_of(profile: ProfileData, batch_size: int) -> MemoryStep:
    step = profile.memory.step if profile.memory else None
    if step is None:
        raise ValueError(
            f"the profile of batch size {batch_size} has no step whose memory was "
            "recorded: measure a few steps with profile(memory=True) and the native "
            "core"
        )
    return step


def _lines(
    before: MemoryStep, small: int, after: MemoryStep, large: int
) -> tuple[tuple[float, float], ...]:
    """Lines through the most in use in each phase, and through the peaks: bytes without
    any batch, and per sample."""
    highest = before.highest, after.highest
    ends = [(before.peak_bytes, after.peak_bytes)]
    ends += [(highest[0][p], highest[1][p]) for p in highest[0].keys() & highest[1]]
    found = []
    for low, high in ends:
        slope = (high - low) / (large - small)
        found.append((low - slope * small, slope))
    return tuple(found)


def _peak(lines: tuple[tuple[float, float], ...], batch_size: int) -> int:
    return round(max(base + slope * batch_size for base, slope in lines))
