"""The memory that the outputs of a traced step take, and would take otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from torchprof_hooks.profiles.files.fields import OPTIONAL, Count
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.trace.memory_levels import (
    Level,
    as_run_levels,
    as_run_peaks,
    without_freeing_bytes,
    without_inplace_peaks,
)
from torchprof_hooks.profiles.trace.module_places import OUTSIDE, Place, find_places
from torchprof_hooks.profiles.trace.step_outputs import Output, StepOutputs
from torchprof_hooks.profiles.trace.step_trace import Operation, StepTrace

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
    without_freeing_bytes: see the function of that name.
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
    without_freeing = without_freeing_bytes(outputs)
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
