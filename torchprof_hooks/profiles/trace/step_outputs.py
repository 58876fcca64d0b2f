"""The outputs of the operations of a traced step, by blocks of memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from torchprof_hooks.profiles.files.fields import Count
from torchprof_hooks.profiles.trace.step_trace import Operation, StepTrace, TensorType

#: Created, written in place, or a view.
OutputKind = Literal["c", "i", "v"]

CREATED: Final = "c"
IN_PLACE: Final = "i"
VIEW: Final = "v"


class Output(NamedTuple):
    """A tensor that an operation returned, or changed.

    kind: "c" if the operation allocated its block, "i" if it wrote to one that was
        there, "v" if it returned a view and wrote nothing.
    tensor: its type; None if no operation has taken it afterwards, so that it is not
        known.
    size_bytes: if created, of its block, as the allocator has it. Otherwise, of the
        elements of the tensor (which may be a part of its block), but not more than of
        the block: a view can repeat elements.
    """

    kind: OutputKind
    tensor: TensorType | None
    size_bytes: Count


class StepOutputs:
    """Outputs of operations that began in the step; a recording may be longer.

    A block is an output of the operation that allocates it, if the block outlives that.
    If not, it is workspace, and counts nowhere; nor do temporary tensors inside of an
    operation that is made of others (a custom Function, an autograd node). A block that
    an operation writes to and has not allocated was written in place, by torch's
    declaration of what it writes.

    made: by block, the number of the operation that has allocated it as an output.
    in_place: by number of the operation, blocks that it has written in place.
    unowned_bytes: what was allocated in the step, but by no operation.
    """

    def __init__(self, trace: StepTrace) -> None:
        self.trace = trace
        self.numbers = [
            number
            for number, operation in enumerate(trace.operations)
            if trace.start_ns <= operation.start_ns <= trace.end_ns
        ]
        self.made: dict[int, int] = {}
        self.in_place: dict[int, list[int]] = {}
        self._allocated = {a.block: a for a in trace.allocations if a.size_bytes > 0}
        self._freed = {a.block: a for a in trace.allocations if a.size_bytes < 0}
        self._own = set[int]()  # blocks allocated by operations
        for number in self.numbers:
            self._look_at(number, trace.operations[number])
        self.unowned_bytes = sum(
            allocation.size_bytes
            for block, allocation in self._allocated.items()
            if block not in self._own
            and trace.start_ns <= allocation.time_ns <= trace.end_ns
        )
        self._older = self._sizes_of_older()

    def size_bytes(self, block: int) -> int:
        """Size of a block. If it was there before the step and stays, it is at least as
        large as the tensors that it was first taken as, and is written to as."""
        known = self._allocated.get(block) or self._freed.get(block)
        return abs(known.size_bytes) if known else self._older.get(block, 0)

    def device(self, block: int) -> str | None:
        """Where a block is."""
        known = self._allocated.get(block) or self._freed.get(block)
        return known.device if known else self.trace.devices.get(block)

    def created_bytes(self) -> dict[str, int]:
        """By device, the sum of all outputs that operations have created: the peak if
        none of them was freed. Writes in place create none; if many of them change what
        was there before, the peak without them can be higher than this."""
        sums = Counter[str]()
        for block in self.made:
            sums[self.device(block) or ""] += self.size_bytes(block)
        return dict(sums)

    def of(self, number: int) -> Iterator[Output]:
        """The outputs of the operation of this number."""
        operation = self.trace.operations[number]
        for block in operation.writes:
            if self.made.get(block) == number:
                tensor = self.trace.tensors.get(block)
                yield Output(CREATED, tensor, self.size_bytes(block))
        for block in self.in_place.get(number, ()):
            yield self._part(IN_PLACE, operation.takes.get(block), block)
        for block, tensor in operation.views.items():
            yield self._part(VIEW, tensor, block)

    def _look_at(self, number: int, operation: Operation) -> None:
        for block in operation.writes:
            if self._is_allocated_in(operation, block):
                self._own.add(block)
                freed = self._freed.get(block)
                if freed is None or freed.time_ns > operation.end_ns:
                    self.made[block] = number
            elif block not in operation.views:
                self.in_place.setdefault(number, []).append(block)

    def _is_allocated_in(self, operation: Operation, block: int) -> bool:
        found = self._allocated.get(block)
        if found is None or block in self._own:
            return False
        return operation.start_ns <= found.time_ns <= operation.end_ns

    def _sizes_of_older(self) -> dict[int, int]:
        sizes = {block: t.size_bytes for block, t in self.trace.tensors.items()}
        for number, blocks in self.in_place.items():
            takes = self.trace.operations[number].takes
            for block in blocks:
                if block in takes:
                    written_bytes = takes[block].size_bytes
                    sizes[block] = max(sizes.get(block, 0), written_bytes)
        return sizes

    def _part(self, kind: OutputKind, tensor: TensorType | None, block: int) -> Output:
        size_bytes = self.size_bytes(block) if kind == IN_PLACE else 0
        if tensor is not None:
            size_bytes = min(tensor.size_bytes, self.size_bytes(block))
        return Output(kind, tensor, size_bytes)
