"""What the reference core knows of a place in the tree of calls, and whose autograd
nodes are: the attribution, in few lines."""

from __future__ import annotations

from typing import Any, Final

#: Nodes of ended calls that are remembered: the newest. Older ones have no owner.
NODES_KEPT: Final = 1 << 18


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
    sees_operators: whether operators that are called from here are functions.
    children: nodes of the modules called from here, by id of the module. Only for this
        core; others use `child` and the methods below it.
    start_ns: when the open call began; moved forward by what interruptions took.
    low: number of the first autograd node that the open call can own.
    ignored: how many calls inside are open that are not followed, of modules that have
        an open call which is.
    owner: the open call, as an owner of autograd nodes; None: it owns none.
    heard: how many autograd nodes of passes ran here.
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
        "heard",
        "ignored",
        "is_called",
        "is_entry",
        "is_function",
        "is_loading",
        "key",
        "low",
        "owner",
        "sees_operators",
        "start_ns",
    )

    def __init__(self, *given: Any) -> None:
        self.caller: Node = self
        self.children: dict[int, Node] = {}
        self.code = self.key = self.start_ns = self.low = 0
        self.heard = self.cut = self.ignored = 0
        self.device = -1
        self.is_entry = self.is_called = self.is_function = self.is_loading = False
        self.sees_operators = self.communicates = False
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


class Owner:
    """A call that owns autograd nodes: those that are made while it is the innermost
    one that is open.

    low: number of the first node that it can own.
    around: the call around it.
    is_backward: whether it is the backward of a call, in a pass that makes a graph.
    """

    __slots__ = ("around", "code", "is_backward", "is_open", "low")

    def __init__(
        self, code: int, low: int, around: Owner | None, is_backward: bool
    ) -> None:
        self.code = code
        self.low = low
        self.around = around
        self.is_backward = is_backward
        self.is_open = True

    def is_passed_over(self) -> bool:
        """Whether the search for the owner of a node skips it: in a running pass, it
        owns the nodes that the pass makes, and none that run in a pass inside of it."""
        return self.is_open and self.is_backward


class Owners:
    """Knows which call made which autograd node. A thread numbers the nodes that it
    makes; its counter is read where a call begins and where it ends, and the node
    belongs to the innermost call between whose numbers its own is."""

    def __init__(self) -> None:
        self._innermost: Owner | None = None  # of those that are open
        self._ended: dict[int, Owner] = {}  # by number of the node

    def own_from(self, site: Node, low: int, is_backward: bool = False) -> None:
        """The call at `site` owns the nodes that are made from number `low` on, as far
        as no call inside of it does."""
        owner = Owner(site.code, low, self._innermost, is_backward)
        site.owner = self._innermost = owner

    def own_until(self, site: Node, high: int) -> None:
        """The call at `site` owns no nodes from number `high` on, and neither do calls
        that were left open inside of it."""
        owner, site.owner = site.owner, None
        if owner is None or not owner.is_open:
            return
        inner = self._innermost
        while inner is not None and inner is not owner.around:
            inner.is_open = False
            for number in range(inner.low, high):
                self._ended.setdefault(number, inner)
            inner = inner.around
        self._innermost = owner.around
        while len(self._ended) > NODES_KEPT:
            del self._ended[next(iter(self._ended))]

    def owners_of(
        self, number: int, is_last: bool = False
    ) -> list[tuple[object, int]] | None:
        """The calls that own the node of this number, outermost first: of each,
        something that is equal for this call alone, and its code. None if several
        threads have made such a node, which only the native core can tell.

        is_last: the node will not run again.
        """
        find = self._ended.pop if is_last else self._ended.get
        owner = find(number, self._innermost)
        while owner is not None and owner.is_open and owner.low > number:
            owner = owner.around
        chain: list[tuple[object, int]] = []
        while owner is not None:
            if not owner.is_passed_over():
                chain.append((owner, owner.code))
            owner = owner.around
        return chain[::-1]
