"""The memory that the outputs of a traced step take, and would take otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from torchprof_hooks.profiles.files.fields import OPTIONAL, Count
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.trace.step_outputs import Output, StepOutputs
from torchprof_hooks.profiles.trace.step_trace import (
    OUTSIDE,
    Operation,
    Place,
    StepTrace,
    find_places,
)


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


def as_run_peaks(outputs: StepOutputs) -> dict[str, tuple[int, int]]:
    """By device, the peak of what operations returned, in the order that ran; and the
    number of the operation that was the first to reach it.

    A block that is an output counts from the moment at which its operation allocates it
    until it is freed, or to the end. Both moments are observed: when the last reference
    to a tensor goes is up to Python, the autograd graph and the optimizer, and does not
    follow from which operation takes what.
    """
    peaks: dict[str, tuple[int, int]] = {}
    for _, device, size_bytes, number in _as_run(outputs):
        if device not in peaks or size_bytes > peaks[device][0]:
            peaks[device] = size_bytes, number
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


#: Prefixes that torch adds to the name of an autograd node.
_NODE: Final = "autograd::engine::evaluate_function: "
_AUTOGRAD: Final = "torch::autograd::"


class OutputRow(NamedTuple):
    """Operations that are called at one place and return the same.

    module, phase: where they are called.
    times: how many there are.
    """

    module: str
    phase: Phase
    operation: str
    outputs: tuple[Output, ...]
    times: Count

    @property
    def size_bytes(self) -> int:
        """Bytes of the outputs of one operation."""
        return sum(output.size_bytes for output in self.outputs)

    @property
    def total_bytes(self) -> int:
        """Bytes of the outputs of all of them."""
        return self.times * self.size_bytes


class DeviceReplay(NamedTuple):
    """The memory of one device.

    as_run_bytes: see `as_run_peaks`.
    without_inplace_bytes: see `without_inplace_peaks`.
    without_freeing_bytes: see `StepOutputs.created_bytes`.
    module, phase, operation: where the peak as it ran was reached; "" for the operation
        if there was none.
    levels: see `as_run_levels`.
    """

    device: str
    as_run_bytes: Count
    without_inplace_bytes: Count
    without_freeing_bytes: Count
    module: str
    phase: Phase
    operation: str
    levels: Annotated[tuple[Level, ...], OPTIONAL] = ()


@dataclass(frozen=True, slots=True)
class MemoryReplay:
    """The memory of one step, replayed from what its operations returned.

    What was there before the step is left out, and so is what an operation allocates
    and frees itself; see `StepOutputs`.

    step: the number of the step.
    devices: by name.
    rows: the outputs of all operations, the largest first.
    unowned_bytes: what was allocated, but by no operation; left out as well.
    """

    step: Count
    devices: tuple[DeviceReplay, ...]
    rows: tuple[OutputRow, ...]
    unowned_bytes: Count = 0


def replay_memory(trace: StepTrace) -> MemoryReplay:
    """The replay of a traced step. Without tensors in the trace, it is empty."""
    outputs = StepOutputs(trace)
    places = find_places(trace)
    return MemoryReplay(
        trace.step,
        tuple(_devices(outputs, places)),
        tuple(_rows(outputs, places)),
        outputs.unowned_bytes,
    )


def _devices(outputs: StepOutputs, places: list[Place]) -> Iterator[DeviceReplay]:
    as_run = as_run_peaks(outputs)
    levels = as_run_levels(outputs)
    without_inplace = without_inplace_peaks(outputs)
    without_freeing = outputs.created_bytes()
    for device in sorted({*as_run, *without_inplace}):
        peak_bytes, place, name = 0, OUTSIDE, ""
        if device in as_run:
            peak_bytes, number = as_run[device]
            place, name = places[number], _name(outputs.trace.operations[number])
        yield DeviceReplay(
            device=device,
            as_run_bytes=peak_bytes,
            without_inplace_bytes=without_inplace[device],
            without_freeing_bytes=without_freeing.get(device, 0),
            module=place.module,
            phase=place.phase,
            operation=name,
            levels=levels.get(device, ()),
        )


def _rows(outputs: StepOutputs, places: list[Place]) -> list[OutputRow]:
    """One row for operations of one name that return the same, in one module and phase
    (so each of several equal layers has rows of its own)."""
    counts: Counter[tuple[Place, str, tuple[Output, ...]]] = Counter()
    for number in outputs.numbers:
        returned = tuple(outputs.of(number))
        if returned:
            name = _name(outputs.trace.operations[number])
            counts[places[number], name, returned] += 1
    rows = [
        OutputRow(place.module, place.phase, name, returned, count)
        for (place, name, returned), count in counts.items()
    ]
    return sorted(rows, key=lambda row: -row.size_bytes)


def _name(operation: Operation) -> str:
    return operation.name.removeprefix(_NODE).removeprefix(_AUTOGRAD)
