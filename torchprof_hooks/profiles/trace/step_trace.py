"""One traced step as plain data: modules, operations, backward passes, memory.

Times are nanoseconds since the Unix epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from torchprof_hooks.profiles.names import Phase

if TYPE_CHECKING:
    from torchprof_hooks.profiles.cells import Chain

#: `Operation.node` for autograd nodes that accumulate into leaves: the only ones that
#: torch does not number.
LEAF_NODE: Final = -1
#: `DeviceActivity.thread` for threads that are not followed.
OTHER_THREAD: Final = 0


class ModuleSpan(NamedTuple):
    """One call of a module (or optimizer, or a whole backward pass) in one phase.

    name: its qualified path, as in the reports.
    kind: its class, "" if it is not a module.
    path: the chain of calls, its own name last; () if that is all of it.
    """

    name: str
    kind: str
    phase: Phase
    start_ns: int
    end_ns: int
    path: Chain = ()


class NodeRun(NamedTuple):
    """The begin of an autograd node.

    thread: the system's number of the thread that runs it.
    path, phase: what it works for: the chain of calls to a module, and its phase.
    """

    thread: int
    start_ns: int
    path: Chain
    phase: Phase


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
    takes: blocks that it read and that existed before, each with the type of its first
        tensor that was read.
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
    """A backward pass.

    edges: those of its graph, as pairs of numbers of autograd nodes, from and to
        (`LEAF_NODE` for those that accumulate into leaves).
    """

    start_ns: int
    end_ns: int
    edges: list[tuple[int, int]]


class Allocation(NamedTuple):
    """Memory that was allocated, or freed: then `size_bytes` is negative.

    total_bytes: what was allocated on the device afterwards, by the allocator's count.
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
    thread: the system's number of the thread that launched it, `OTHER_THREAD` if that
        ran no part of the step; None if that is not known.
    of_graph: whether a CUDA graph was launched, and this is a part of that.
    """

    device: str
    start_ns: int
    end_ns: int
    launch_ns: int | None
    name: str = ""
    thread: int | None = None
    of_graph: bool = False


class GraphCall(NamedTuple):
    """A call, in compiled code, that a CUDA graph repeats.

    kernel: the name of the one kernel that it runs; "": any, and any number of them.
    runs_any: whether it is certain to run one.
    path, phase: what it works for: the chain of calls to a module, and its phase.
    """

    kernel: str
    runs_any: bool
    path: Chain
    phase: Phase


class GraphLaunches(NamedTuple):
    """A call of compiled code whose parts CUDA graphs may have run.

    thread: the system's number of the thread that called it.
    graphs: the calls in each part, in order; none if that order is not the device's.
    """

    thread: int
    start_ns: int
    end_ns: int
    graphs: tuple[tuple[GraphCall, ...], ...] = ()


@dataclass(slots=True)
class StepTrace:
    """One traced step, as the thread that ran it saw it.

    step: its number: that of the counter after it.
    process, thread: the system's numbers of the process and thread that ran it.
    modules: outer calls come before the calls inside of them.
    operations: in the order in which they began.
    passes: backward passes; one may run inside of another.
    nodes: the nodes that they ran, in no order.
    tensors: the tensor type of each block, as far as a tensor in it was recorded.
    activities: what devices have run, in no order, also before and after the step.
    launches: of CUDA graphs, by compiled code.
    """

    step: int
    process: int
    thread: int
    start_ns: int
    end_ns: int
    modules: list[ModuleSpan] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    passes: list[GraphPass] = field(default_factory=list)
    nodes: list[NodeRun] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    tensors: dict[int, TensorType] = field(default_factory=dict)
    activities: list[DeviceActivity] = field(default_factory=list)
    launches: list[GraphLaunches] = field(default_factory=list)
