"""The core in Python: a place in the tree of calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchprof_hooks.capture.record.site import Site


class Node:
    """What a cursor knows of one place in the tree of calls.

    At most one call per node is open at a time in a thread, so the state of the open
    call lives here, not on a stack.

    code: position in the cursor's list of nodes.
    caller: the node that the thread goes back to; the outermost one is its own caller.
    key: id of the module, optimizer or data loader that is called here; else 0.
    is_entry: whether a call here interrupts its caller instead of being a part of it.
    is_called: whether calls here are forwards, or recomputations of forwards.
    is_frame: whether a profiled function is called here that is in no module, or
        something that trains in a loop (see `open_frames`).
    is_part: whether a module is called here, directly from a frame.
    is_outer: whether modules called from here are outermost ones: the node stands for
        the program itself, or for an optimizer.
    is_function: whether a function is called here.
    is_hidden: whether nobody is told of calls here.
    children: nodes of the modules called from here, by id of the module; elsewhere than
        in this core, see `child` and the methods below it.
    functions: nodes of the functions called from here; None: not to be followed.
    by_shapes: for a function: nodes of its calls by the shapes of their inputs.
    start_ns: when the open call began; moved forward by what interruptions took.
    low: number of the first autograd node that the open call can own.
    arrivals: how often backward passes came here from the nodes of other calls.
    heard: of how many autograd nodes the native core was told while a pass was here.
    reading_ns: how much of the node's time measuring took: reading meters, finding
        nodes for new calls, beginning and ending passes, booking entries and telling
        of their ends.
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
        "reading_ns",
        "start_ns",
    )

    def __init__(self, *given: Any) -> None:
        self.caller: Site = self  # type: ignore[assignment]
        self.children: dict[int, Site] = {}
        self.functions: dict[Any, Site | None] = {}
        self.by_shapes: dict[object, Site] = {}
        self.code = self.key = self.start_ns = self.low = 0
        self.arrivals = self.heard = self.reading_ns = 0
        self.is_entry = self.is_called = self.is_function = self.is_hidden = False
        self.is_frame = self.is_part = self.is_outer = False

    def child(self, key: int) -> Site | None:
        """The node of calls of the module whose id is `key`, from here."""
        return self.children.get(key)

    def add_child(self, key: int, child: Site) -> None:
        """Calls of the module whose id is `key` are calls at `child`, from here."""
        self.children[key] = child

    def forget_child(self, key: int) -> None:
        """The next call of a module with this id, from here, is a new one."""
        self.children.pop(key, None)

    def all_children(self) -> list[Site]:
        """Of all modules called from here."""
        return list(self.children.values())

    def continue_call_of(self, other: Any) -> None:
        """The call that is open at `other` turns out to be one at this node."""
        self.key = other.key
        self.start_ns = other.start_ns
        self.low = other.low
