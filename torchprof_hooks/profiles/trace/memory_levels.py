"""How high the memory of a step's outputs rises, as it ran and in other ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from torchprof_hooks.profiles.trace.step_outputs import StepOutputs


class Peak(NamedTuple):
    """The highest level, and the number of the operation that was the first to reach
    it."""

    size_bytes: int
    operation: int


class _Change(NamedTuple):
    """Something happens to the buffers of a block.

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
    levels = Counter[str]()
    peaks: dict[str, Peak] = {}
    for block, _, size_bytes, device, _ in outputs.trace.allocations:
        number = outputs.made.get(block)
        if number is not None:
            levels[device] += size_bytes
            if device not in peaks or levels[device] > peaks[device].size_bytes:
                peaks[device] = Peak(levels[device], number)
    return peaks


def without_inplace_peaks(outputs: StepOutputs) -> dict[str, int]:
    """By device, the same peak if operations that write in place returned new tensors.

    Such an operation would need a second buffer of the size of the whole block from its
    beginning on (of a view, the rest would have to be copied). When it ends, the first
    one is let go of, if it is an output: names in Python stand for the new one. What
    was there before the step is none, and stays; its new buffer is, and counts until
    the block is freed, or to the end, or until the next write in place replaces it in
    turn. At no moment is this less than as it ran.
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
        end_ns = max(operation.end_ns, start_ns + 1)  # not at one moment
        for block in blocks:
            yield _Change(start_ns, 1, block, 1, 2)
            yield _Change(end_ns, 0, block, 0, 1)
