"""Whose node is it? Which call made which autograd node, so that a backward pass is
booked on the calls whose nodes it runs.

torch numbers the autograd nodes that a thread makes, one after the other. The thread's
counter is read where a call begins (``low``) and where it ends (``high``): nodes with a
number in ``[low, high)`` were made in the call. The interval of a call lies in those of
the calls around it, so a node belongs to the innermost call whose interval has its
number. Nothing is written into nodes, and it does not matter what inputs and outputs
look like.

An example. A thread has made nodes 0 to 2, and calls ``net = Sequential(Linear, ReLU,
Linear)``, and ``sum()``::

    call   low  high  around  nodes that were made
    net      3     8  -       all from 3 to 7
    `0`      3     5  net     TBackward 3, AddmmBackward 4
    `1`      5     6  net     ReluBackward 5
    `2`      6     8  net     TBackward 6, AddmmBackward 7

Whose is node 4? It is in [3, 5) and in [3, 8): of `0`, inside of net. Whose is node 8,
of the sum? It is in no interval: the pass itself has it, on its row. Where a call ends,
it is given the nodes of its interval that no call inside of it has: `0` has 3 and 4,
`1` has 5, `2` has 6 and 7, and net has none for itself.

Rules, with the numbers of torch 2.13:

- AccumulateGrad has no number, and belongs to the node before it: ``HookedPasses`` puts
  no hook on it.
- Calls that are open own nodes, too, as a pass may run inside of a forward: the
  innermost one that began before the node was made counts.
- Nested passes need no rule: they begin at the call that runs them. If net is in a
  reentrant checkpoint, its forward makes no nodes. The checkpoint is node 3, the sum 4.
  When node 3 runs, it calls net again, with [5, 10) and in that [5, 7), [7, 8),
  [8, 10); and the pass that it runs works for these calls.
- ``create_graph``: the pass makes nodes, which belong to the calls whose backward makes
  them. While it works for a call, that is an owner with ``is_backward``. By
  ``torch.autograd.grad(loss, parameters, create_graph=True)``: [9, 21) is of the
  backward of net, and in it [9, 14) of `2`, [14, 15) of `1`, [15, 21) of `0`.
- Both at once: calls in a nested pass have open owners with ``is_backward`` around
  them. These are passed over: the pass around works for them already, and they would be
  booked inside of themselves.
- Threads: each counts its own nodes, from 0, and hooks on nodes do not know which
  thread made a node. So this core follows one thread alone, and takes the node of
  another thread for the one that has its number here. (If both are in one pass, that is
  not divided: graph.py.) The native core's tapes (native/attribution.h) are by thread.
- The newest `NODES_KEPT` nodes of ended calls are remembered. Older ones have no owner.
"""

from __future__ import annotations

from typing import Final, Protocol

#: Nodes of ended calls that are remembered: the newest. Older ones have no owner.
NODES_KEPT: Final = 1 << 18


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


class Place(Protocol):
    """Where calls are booked: at most one is open there at a time, its `owner`."""

    code: int
    owner: Owner | None


class Owners:
    """Knows which call made which autograd node."""

    def __init__(self) -> None:
        self._innermost: Owner | None = None  # of those that are open
        self._ended: dict[int, Owner] = {}  # by number of the node

    def own_from(self, site: Place, low: int, is_backward: bool = False) -> None:
        """The call at `site` owns the nodes that are made from number `low` on, as far
        as no call inside of it does."""
        owner = Owner(site.code, low, self._innermost, is_backward)
        site.owner = self._innermost = owner

    def own_until(self, site: Place, high: int) -> None:
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
