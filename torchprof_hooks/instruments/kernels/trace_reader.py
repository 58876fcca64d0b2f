"""Reads what torch's profiler and our recorder have kept into a `StepTrace`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from torchprof_hooks.kernel.reference.span_log import Int64s
from torchprof_hooks.kernel.torch_names.profiler import (
    ALLOCATION,
    NODE_SCOPE,
    OPERATION,
    TENSOR,
    USER_SCOPE,
)
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.trace.step_trace import (
    Allocation,
    GraphPass,
    ModuleSpan,
    NodeRun,
    Operation,
    StepTrace,
    TensorType,
)


def read_modules(
    sites: Sequence[Site],
    infos: Mapping[str, ModuleInfo],
    spans: Int64s,
    unix_offset_ns: int,
) -> Iterator[ModuleSpan]:
    """Spans, by the names of their sites, the outer ones first.

    unix_offset_ns: what to add to their times.
    """

    def outer_first(span: list[int]) -> tuple[int, int, int]:
        code, start_ns, end_ns = span
        return start_ns, -end_ns, code  # a site is made after the one it is called from

    for code, start_ns, end_ns in sorted(spans.tolist(), key=outer_first):
        site = sites[code]
        name = site.path[-1]
        info = infos.get(name)
        yield ModuleSpan(
            name,
            info.class_name if info else "",
            site.phase,
            start_ns + unix_offset_ns,
            end_ns + unix_offset_ns,
            site.path,
        )


def read_nodes(
    sites: Sequence[Site],
    nodes: Int64s,
    threads: Mapping[int, int],
    unix_offset_ns: int,
) -> Iterator[NodeRun]:
    """Nodes. threads: the system's numbers, by those of Python."""
    for thread, start_ns, code in nodes.tolist():
        path, phase = sites[code].path, sites[code].phase
        yield NodeRun(threads[thread], start_ns + unix_offset_ns, path, phase)


def read_passes(
    passes: Iterable[GraphPass], unix_offset_ns: int
) -> Iterator[GraphPass]:
    """Backward passes, in the order in which they began."""
    for start_ns, end_ns, edges in sorted(passes):
        yield GraphPass(start_ns + unix_offset_ns, end_ns + unix_offset_ns, edges)


class EventReader:
    """Reads the events of torch's profiler into `trace`.

    threads: the system's numbers of threads, by the profiler's.
    yield_gil: called often, to let other threads work.
    """

    def __init__(
        self,
        trace: StepTrace,
        threads: Mapping[int, int],
        yield_gil: Callable[[], None],
    ) -> None:
        self._trace = trace
        self._threads = threads
        self._yield_gil = yield_gil
        #: Torch numbers storages by their addresses, and does not always see that one
        #: was freed. So we number blocks ourselves, anew with each allocation.
        self._blocks: dict[Any, int] = {}
        self._next_block = 1
        self._in_use: dict[tuple[str, int], Allocation] = {}  # by device and address
        self._taken: set[int] = set()

    def read(self, events: Iterable[Any]) -> None:
        """Read events and what is inside of them, in the order of time."""
        # Sorted, as events inside of a long range in one thread come before those of
        # another thread meanwhile.
        outermost = sorted(self._outermost(events), key=lambda event: event[0])
        for _, event, kind, fields in outermost:
            self._yield_gil()
            if kind == ALLOCATION:
                self._read_allocation(event, fields)
            else:
                self._read_operation(event, fields)
        self._trace.allocations.sort(key=lambda allocation: allocation.time_ns)

    def _outermost(self, events: Iterable[Any]) -> Iterator[tuple[int, Any, Any, Any]]:
        """Start, event, kind and fields of operations and allocations, out of whatever
        else is around them."""
        for event in events:
            self._yield_gil()
            kind, fields = event.typed
            is_operation = kind == OPERATION and fields.scope != USER_SCOPE
            if is_operation or kind == ALLOCATION:
                yield event.start_time_ns, event, kind, fields
            else:
                yield from self._outermost(event.children)

    def _read_operation(self, event: Any, fields: Any) -> None:
        start_ns = event.start_time_ns
        operation = Operation(
            event.name,
            self._threads.get(event.start_tid, self._trace.thread),
            start_ns,
            max(event.end_time_ns, start_ns),
        )
        self._trace.operations.append(operation)
        self._read_inputs(operation.name, event, fields, operation)
        self._read_inside(event.children, operation)

    def _read_inside(self, events: Iterable[Any], operation: Operation) -> None:
        for event in events:
            kind, fields = event.typed
            if kind == OPERATION:
                if not _is_view(event.name):
                    self._read_inputs(event.name, event, fields, operation)
            elif kind == ALLOCATION:
                block = self._read_allocation(event, fields)
                if fields.alloc_size > 0:
                    operation.writes[block] = None
                continue
            self._read_inside(event.children, operation)

    def _read_inputs(
        self, name: str, event: Any, fields: Any, operation: Operation
    ) -> None:
        inputs = fields.inputs
        written = _written_inputs(name, len(inputs))
        # Nodes may run passes of their own, with other nodes inside of them.
        is_node = fields.scope == NODE_SCOPE and operation.node is None
        if is_node:
            operation.node = fields.sequence_number
        for position, tensor in _tensors_among(inputs):
            block = self._block_of(tensor)
            if block not in operation.writes:
                self._take(block, tensor, operation)
            elif block not in self._trace.tensors:
                self._trace.tensors[block] = _type_of(tensor)
            if position in written:
                operation.writes[block] = None
            if is_node:
                operation.gradients.add(block)

    def _take(self, block: int, tensor: Any, operation: Operation) -> None:
        if block in operation.takes:
            return
        operation.takes[block] = kind = _type_of(tensor)
        if block not in self._taken:
            # Most likely, the first operation that takes it has the tensor itself; in
            # the operation that makes it, it may look different for a while.
            self._taken.add(block)
            self._trace.tensors[block] = kind

    def _block_of(self, tensor: Any) -> int:
        key = tensor.allocation_id
        return self._blocks[key] if key in self._blocks else self._new_block(key)

    def _read_allocation(self, event: Any, fields: Any) -> int:
        # Not every block becomes a tensor, and only blocks that do have an id.
        key = fields.ptr if fields.allocation_id is None else fields.allocation_id
        size_bytes = fields.alloc_size
        device, time_ns = str(fields.device), event.start_time_ns
        if size_bytes > 0:
            self._free_missed(device, fields.ptr, time_ns)
        block = None if size_bytes > 0 else self._blocks.get(key)
        if block is None:
            block = self._new_block(key)
        found = Allocation(block, time_ns, size_bytes, device, fields.total_allocated)
        self._trace.allocations.append(found)
        if size_bytes > 0:
            self._in_use[device, fields.ptr] = found
        else:
            self._in_use.pop((device, fields.ptr), None)
            del self._blocks[key]
        return block

    def _free_missed(self, device: str, address: int, time_ns: int) -> None:
        """Note that the block which was at this address is free, as the address is
        given out again: torch does not see what other threads free."""
        gone = self._in_use.pop((device, address), None)
        if gone is not None:
            self._trace.allocations.append(
                gone._replace(time_ns=time_ns, size_bytes=-gone.size_bytes)
            )

    def _new_block(self, key: Any) -> int:
        block = self._blocks[key] = self._next_block
        self._next_block += 1
        return block


def _tensors_among(inputs: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Position of each tensor among the inputs of an event, also of those in lists."""
    for position, value in enumerate(inputs):
        if isinstance(value, TENSOR):
            yield position, value
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, TENSOR):
                    yield position, item


def _type_of(tensor: Any) -> TensorType:
    """Data type and shape of a tensor, as the profiler shows them."""
    return TensorType(str(tensor.dtype).removeprefix("torch."), tuple(tensor.sizes))


@cache
def _written_inputs(name: str, count: int) -> frozenset[int]:
    """Positions of the inputs that the operation of this name writes to, if it has
    `count` inputs; by torch's declarations."""
    return frozenset(
        position
        for schema in _schemas(name)
        if len(schema.arguments) == count
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


@cache
def _is_view(name: str) -> bool:
    """Whether the operation of this name returns views of its inputs and does no more,
    by torch's declarations."""
    schemas = list(_schemas(name))
    return bool(schemas) and all(
        any(result.alias_info is not None for result in schema.returns)
        and not schema.is_mutable
        for schema in schemas
    )


def _schemas(name: str) -> Iterator[Any]:
    """What torch declares of the overloads of an operation. Autograd nodes and custom
    Functions are no operations, and have none."""
    namespace, separator, operation = name.partition("::")
    if not separator or not operation.isidentifier():
        return
    packet = getattr(getattr(torch.ops, namespace), operation, None)
    for overload in packet.overloads() if packet is not None else ():
        yield getattr(packet, overload)._schema
