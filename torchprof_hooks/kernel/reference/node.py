"""What the reference core knows of one place in the tree of calls."""

from __future__ import annotations

from typing import Any

from torchprof_hooks.kernel.reference.attribution import Owner


class Node:
    """What a cursor knows of one place in the tree of calls.

    At most one call per node is open at a time in a thread, so the state of the open
    call lives here, not on a stack.

    code: position in the cursor's list of nodes.
    caller: the node that the thread goes back to; the outermost one is its own caller.
    key: id of the module, optimizer or data loader that is called here; else 0.
    is_entry: whether a call here interrupts its caller instead of being a part of it.
    is_called: whether calls here are forwards, or recomputations of forwards.
    is_function: whether a function is called here.
    is_loading: whether data is loaded here, and modules that are called from here are
        a part of that.
    observes_operators: whether operators that are called from here are functions.
    children: nodes of the modules called from here, by id of the module. Only for this
        core; others use `child` and the methods below it.
    start_ns: when the open call began; moved forward by what interruptions took.
    low: number of the first autograd node that the open call can own.
    ignored: how many calls inside are open that are not followed, of modules that have
        an open call which is.
    owner: the open call, as an owner of autograd nodes (see `Owners`); None: it owns
        none.
    nodes_run: how many autograd nodes of passes ran here.
    cut: how many calls here did not run to their end.
    device: for the native core, the index of the device that has the parameters of its
        module; below 0: none has them all.
    communicates: for the native core, whether this is an exchange with other processes.
    """

    __slots__ = (
        "caller",
        "children",
        "code",
        "communicates",
        "cut",
        "device",
        "ignored",
        "is_called",
        "is_entry",
        "is_function",
        "is_loading",
        "key",
        "low",
        "nodes_run",
        "observes_operators",
        "owner",
        "start_ns",
    )

    def __init__(self, *given: Any) -> None:
        self.caller: Node = self
        self.children: dict[int, Node] = {}
        self.code = self.key = self.start_ns = self.low = 0
        self.nodes_run = self.cut = self.ignored = 0
        self.device = -1
        self.is_entry = self.is_called = self.is_function = self.is_loading = False
        self.observes_operators = self.communicates = False
        self.owner: Owner | None = None

    def child(self, key: int) -> Any:
        """The node of calls of the module whose id is `key`, from here."""
        return self.children.get(key)

    def add_child(self, key: int, child: Node) -> None:
        """Make `child` the node of calls, from here, of the module whose id is
        `key`."""
        self.children[key] = child

    def forget_child(self, key: int) -> None:
        """Forget the node of the module with this id: its next call, from here, is a
        new one."""
        self.children.pop(key, None)

    def continue_call_of(self, other: Any) -> None:
        """Move the call that is open at `other` to this node."""
        self.key = other.key
        self.start_ns = other.start_ns
        self.low = other.low
        self.owner, other.owner = other.owner, None
        if self.owner is not None:
            self.owner.code = self.code
