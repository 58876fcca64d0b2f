"""Where a backward pass goes over from one owner to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from torchprof_hooks.capture.ownership import Interval
from torchprof_hooks.capture.site import Site
from torchprof_hooks.capture.torch_names import NO_SEQUENCE_NUMBER, sequence_number


def reachable_nodes(roots: Iterable[Any]) -> dict[int, Any]:
    """The nodes that a backward pass from `roots` can run, by sequence number.

    Nodes that accumulate into leaves have no number and are left out: each runs right
    after the node that feeds it and belongs to that node's owner.
    """
    found: dict[int, Any] = {NO_SEQUENCE_NUMBER: None}
    to_visit: list[Any] = []
    for root in roots:
        number = sequence_number(root)
        if number not in found:
            found[number] = root
            to_visit.append(root)
    visit, pop = to_visit.append, to_visit.pop
    while to_visit:
        for node, _ in pop().next_functions:
            if node is not None:
                number = node._sequence_nr()  # inlined: the hot loop of a pass
                if number not in found:
                    found[number] = node
                    visit(node)
    del found[NO_SEQUENCE_NUMBER]
    return found


class Owner:
    """One forward call, as the owner of a stretch of a backward pass.

    site: where its backward is booked.
    low: number of the first node that it owns.
    around: the call around it, None for the one owner that is no call: the pass itself.
    """

    __slots__ = ("around", "depth", "low", "site")

    def __init__(self, site: Site, low: int, around: Owner | None) -> None:
        self.site = site
        self.low = low
        self.around = around
        self.depth: int = 0 if around is None else around.depth + 1


class Move:
    """What happens where a pass goes over from `before` to `owner`: the calls that end
    there, innermost first, and those that begin, outermost first."""

    __slots__ = ("before", "closes", "opens", "owner")

    def __init__(
        self, before: Owner, owner: Owner, closes: list[Site], opens: list[Site]
    ) -> None:
        self.before = before
        self.owner = owner
        self.closes = closes
        self.opens = opens


def plan_moves(
    numbers: Iterable[int],
    intervals: Iterator[Interval],
    whole_pass: Owner,
    backward_site: Callable[[Site, int], Site],
) -> dict[int, Move]:
    """The moves of a pass, by the number of the node before which each takes place.

    numbers: the nodes' sequence numbers, descending: the order in which they will run.
    intervals: newest first (see `ownership.newest_first`).
    backward_site: gives the site for the backward of the call at a forward site (its
        code), inside of another backward site.
    """
    moves: dict[int, Move] = {}
    owner = whole_pass
    code, low, high = next(intervals, _END)
    for number in numbers:
        if owner.low <= number >= high:
            continue  # the most frequent case: one more node of the same owner
        before = owner
        closes: list[Site] = []
        opens: list[Site] = []
        while number < owner.low:
            closes.append(owner.site)
            owner = _around(owner)
        while high > number:
            if low <= number:
                owner = Owner(backward_site(owner.site, code), low, owner)
                opens.append(owner.site)
            code, low, high = next(intervals, _END)
        if owner is not before:
            moves[number] = Move(before, owner, closes, opens)
    return moves


def move_between(before: Owner, owner: Owner) -> Move:
    """The move between any two owners of a pass. A planned move does not fit where the
    engine left out nodes, or runs them in another order on several devices."""
    closes: list[Site] = []
    opens: list[Site] = []
    left, right = before, owner
    while left is not right:
        depth = left.depth
        if depth >= right.depth:
            closes.append(left.site)
            left = _around(left)
        if depth <= right.depth:
            opens.append(right.site)
            right = _around(right)
    opens.reverse()
    return Move(before, owner, closes, opens)


def _around(owner: Owner) -> Owner:
    assert owner.around is not None
    return owner.around


_END: Final[Interval] = (-1, 0, -1)
