"""One traced step as plain data: modules, operations, backward passes, memory.

Times are nanoseconds since the Unix epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from torchprof_hooks.profiles.names import Phase

#: `Operation.node` of the autograd nodes that accumulate into leaves: torch numbers all
#: others.
LEAF_NODE: Final = -1


class ModuleSpan(NamedTuple):
    """One call of a module (or optimizer, or a whole backward pass) in one phase.

    name: its qualified path, as in the reports.
    kind: its class, "" if it is not a module.
    """

    name: str
    kind: str
    phase: Phase
    start_ns: int
    end_ns: int


class TensorType(NamedTuple):
    """Data type and shape of a tensor: "float32", (2, 3)."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(slots=True)
class Operation:
    """An outermost operation, with everything inside of it.

    Memory is known by blocks. A block lasts from its allocation until it is freed;
    several tensors may be views of it.

    thread: the system's number of the thread that ran it.
    takes: blocks that were there before, each as the first tensor of it that was taken.
    writes: blocks that it allocated or changed.
    node: the number of the autograd node that it ran, None if it did not run one.
    gradients: blocks of the gradients that the node was given.
    """

    name: str
    thread: int
    start_ns: int
    end_ns: int
    takes: dict[int, TensorType] = field(default_factory=dict)
    writes: dict[int, None] = field(default_factory=dict)
    node: int | None = None
    gradients: set[int] = field(default_factory=set)


class GraphPass(NamedTuple):
    """A backward pass, and the edges of its graph: numbers of autograd nodes, from and
    to (`LEAF_NODE` for those that accumulate into leaves)."""

    start_ns: int
    end_ns: int
    edges: list[tuple[int, int]]


class Allocation(NamedTuple):
    """Memory that was allocated, or freed: then `size_bytes` is negative.

    total_bytes: what was allocated on the device after it, as the allocator counts.
    """

    block: int
    time_ns: int
    size_bytes: int
    device: str
    total_bytes: int


class DeviceActivity(NamedTuple):
    """A kernel, a copy or the like that a device has run.

    device: its name, "cuda:0".
    launch_ns: when the host began to launch it, None if that was not recorded.
    """

    device: str
    start_ns: int
    end_ns: int
    launch_ns: int | None


@dataclass(slots=True)
class StepTrace:
    """One traced step, as the thread that ran it saw it.

    step: its number, after it.
    process, thread: the system's numbers of who ran it.
    modules: of calls inside each other, the outer one first.
    operations: in the order in which they began.
    passes: backward passes; one may run inside of another.
    tensors: the tensor type of each block that was seen as a tensor.
    activities: what devices have run, in no order, also before and after the step.
    """

    step: int
    process: int
    thread: int
    start_ns: int
    end_ns: int
    modules: list[ModuleSpan] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    passes: list[GraphPass] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    tensors: dict[int, TensorType] = field(default_factory=dict)
    activities: list[DeviceActivity] = field(default_factory=list)
