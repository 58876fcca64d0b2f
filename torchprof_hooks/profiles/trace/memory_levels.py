"""Peaks of the memory of a step's outputs: as it ran, and as it could have run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from torchprof_hooks.profiles.files.fields import Count
from torchprof_hooks.profiles.trace.step_outputs import StepOutputs


class Peak(NamedTuple):
    """The highest level, and the number of the operation that was the first to reach
    it."""

    size_bytes: int
    operation: int


class Level(NamedTuple):
    """What a device held from a moment on: `offset_ns` after the begin of the step."""

    offset_ns: Count
    size_bytes: Count


#: Parts of a step of which a few levels are kept.
_PARTS: Final = 128


class _Change(NamedTuple):
    """A change of the buffers of a block.

    order: of changes at one moment, the smaller number first.
    added, most: how many buffers more there are, and how many there can be afterwards.
    """

    time_ns: int
    order: int
    block: int
    added: int
    most: int


def as_run_peaks(outputs: StepOutputs) -> dict[str, Peak]:
    """By device, the peak of what operations returned, in the order that ran.

    A block that is an output counts from the moment at which its operation allocates it
    until it is freed, or to the end. Both moments are observed: when the last reference
    to a tensor goes is up to Python, the autograd graph and the optimizer, and does not
    follow from which operation takes what.
    """
    peaks: dict[str, Peak] = {}
    for _, device, size_bytes, number in _as_run(outputs):
        if device not in peaks or size_bytes > peaks[device].size_bytes:
            peaks[device] = Peak(size_bytes, number)
    return peaks


def as_run_levels(outputs: StepOutputs) -> dict[str, tuple[Level, ...]]:
    """By device, how the level of `as_run_peaks` rose and fell during the step, thinned
    out: of each part of the step, the highest level and the last one are kept."""
    begin_ns, end_ns = outputs.trace.start_ns, outputs.trace.end_ns
    part_ns = max((end_ns - begin_ns) / _PARTS, 1)
    kept: dict[str, dict[int, tuple[Level, Level]]] = {}
    for time_ns, device, size_bytes, _ in _as_run(outputs):
        level = Level(min(max(time_ns, begin_ns), end_ns) - begin_ns, size_bytes)
        parts = kept.setdefault(device, {})
        part = int(level.offset_ns / part_ns)
        highest, _ = parts.get(part, (level, level))
        parts[part] = max(highest, level, key=lambda each: each.size_bytes), level
    return {
        device: tuple(dict.fromkeys(each for pair in parts.values() for each in pair))
        for device, parts in kept.items()
    }


def _as_run(outputs: StepOutputs) -> Iterator[tuple[int, str, int, int]]:
    """When, on which device, the level since, and the operation whose output it is."""
    levels = Counter[str]()
    for block, time_ns, size_bytes, device, _ in outputs.trace.allocations:
        number = outputs.made.get(block)
        if number is not None:
            levels[device] += size_bytes
            yield time_ns, device, levels[device], number


def without_inplace_peaks(outputs: StepOutputs) -> dict[str, int]:
    """By device, the peak if operations that write in place returned new tensors.

    Such an operation would need a second buffer of the size of the whole block from its
    beginning on (of a view, the rest would have to be copied). When it ends, the first
    one is freed, if it is an output: names in Python stand for the new one. A block
    from before the step is not an output, and stays; its new buffer is one, and counts
    until the block is freed, or to the end, or until the next write in place replaces
    it in turn. At no moment is this less than as it ran.
    """
    buffers, levels, peaks = Counter[int](), Counter[str](), Counter[str]()
    for _, _, block, added, most in sorted(_changes(outputs), key=lambda c: c[:2]):
        device = outputs.device(block)
        if device is not None:
            before = buffers[block]
            buffers[block] = after = min(before + added, most)
            levels[device] += (after - before) * outputs.size_bytes(block)
            peaks[device] = max(peaks[device], levels[device])
    return dict(peaks)


def without_freeing_bytes(outputs: StepOutputs) -> dict[str, int]:
    """By device, the sum of all outputs that operations have created: the peak if none
    of them was freed. Writes in place create none; if many of them change what was
    there before, the peak without them can be higher than this."""
    sums = Counter[str]()
    for block in outputs.made:
        sums[outputs.device(block) or ""] += outputs.size_bytes(block)
    return dict(sums)


def _changes(outputs: StepOutputs) -> Iterator[_Change]:
    for block, time_ns, size_bytes, *_ in outputs.trace.allocations:
        if size_bytes < 0:
            yield _Change(time_ns, 2, block, 0, 0)
        elif block in outputs.made:
            yield _Change(time_ns, 2, block, 1, 1)
    for number, blocks in outputs.in_place.items():
        operation = outputs.trace.operations[number]
        start_ns = operation.start_ns
        end_ns = max(operation.end_ns, start_ns + 1)  # it must come after the start
        for block in blocks:
            yield _Change(start_ns, 1, block, 1, 2)
            yield _Change(end_ns, 0, block, 0, 1)
