"""What the core in Python knows of a place in the tree of calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchprof_hooks.capture.record.site import Site


class Node:
    """What a cursor knows of one place in the tree of calls.

    At most one call per node is open at a time in a thread, so the state of the open
    call lives here, not on a stack.

    code: position in the cursor's list of nodes.
    caller: the node that the thread goes back to; the outermost is its own.
    key: the module that is called here, or what else is known by its id; or 0.
    is_entry: whether a call here interrupts its caller instead of being a part of it.
    is_called: whether it is the forward or the recompute of a module or a function.
    is_frame: whether it is that of a profiled function that no module is around, or of
        one that trains in a loop.
    is_part: whether it is that of a module, called right from a frame.
    is_outer: whether modules that are called from here are called from outside of all
        others, and no part of something else.
    is_function: whether it is that of a function.
    is_hidden: whether nobody is told of calls here.
    children: by id of the module.
    functions: by what torch calls; None: not to be followed.
    by_shapes: of a function: one for each shapes of its inputs.
    start_ns: when the open call began; moved forward by what interruptions took.
    low: number of the first autograd node that the open call can own.
    arrivals: of backward passes, from the nodes of other calls.
    heard: nodes of backward passes that the core was told of while they were here.
    passed_over: calls of what is no function.
    reading_ns: what reading meters took, finding nodes for new calls, beginning and
        ending passes, and booking entries and telling of their ends, in the time of
        this node.
    """

    __slots__ = (
        "arrivals",
        "by_shapes",
        "caller",
        "children",
        "code",
        "functions",
        "heard",
        "is_called",
        "is_entry",
        "is_frame",
        "is_function",
        "is_hidden",
        "is_outer",
        "is_part",
        "key",
        "low",
        "passed_over",
        "reading_ns",
        "start_ns",
    )

    def __init__(self, *given: Any) -> None:
        self.caller: Site = self  # type: ignore[assignment]
        self.children: dict[int, Site] = {}
        self.functions: dict[Any, Site | None] = {}
        self.by_shapes: dict[object, Site] = {}
        self.code = self.key = self.start_ns = self.low = 0
        self.arrivals = self.heard = self.passed_over = self.reading_ns = 0
        self.is_entry = self.is_called = self.is_function = self.is_hidden = False
        self.is_frame = self.is_part = self.is_outer = False

    def continue_call_of(self, other: Any) -> None:
        """The call that is open at `other` turns out to be one at this node."""
        self.key = other.key
        self.start_ns = other.start_ns
        self.low = other.low
