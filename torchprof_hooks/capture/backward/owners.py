"""Which calls own the nodes of a backward pass, and what happens where a pass goes over
from one owner to the next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from torchprof_hooks.capture.backward.ownership import Interval
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.torch_names.autograd import (
    NO_SEQUENCE_NUMBER,
    sequence_number,
)

if TYPE_CHECKING:
    from torchprof_hooks.capture.tracking.tracker import Tracker


def reachable_nodes(roots: Iterable[Any]) -> dict[int, Any] | None:
    """The nodes that a backward pass from `roots` can run, by sequence number; None if
    two of them have the same number, for each thread numbers its own nodes.

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
                elif found[number] is not node and number != NO_SEQUENCE_NUMBER:
                    return None
    del found[NO_SEQUENCE_NUMBER]
    return found


def nodes_within(roots: Iterable[Any], low: int, high: int) -> list[Any]:
    """The nodes with a number in ``[low, high)`` that can be reached from `roots`
    through nothing but such nodes, in the order in which they were made."""
    found: dict[int, Any] = {}
    to_visit = list(roots)
    while to_visit:
        node = to_visit.pop()
        number = sequence_number(node)
        if low <= number < high and number not in found:
            found[number] = node
            to_visit += [inner for inner, _ in node.next_functions if inner is not None]
    return [found[number] for number in sorted(found)]


class Owner:
    """One forward call, as the owner of a stretch of a backward pass.

    site: where its backward is booked.
    low: number of the first node that it owns.
    around: the call around it, None for the one owner that is no call: the pass itself.
    is_split: whether each of its nodes is an owner of its own, inside of it.
    """

    __slots__ = ("around", "depth", "is_split", "low", "site")

    def __init__(
        self, site: Site, low: int, around: Owner | None, names_nodes: bool = False
    ) -> None:
        self.site = site
        self.low = low
        self.around = around
        self.depth: int = 0 if around is None else around.depth + 1
        self.is_split = names_nodes and site.function is None


def owners_of(
    whole: Owner,
    numbers: Iterable[int],
    nodes: Mapping[int, Any],
    intervals: Iterator[Interval],
    tracker: Tracker,
) -> dict[int, Owner]:
    """The owner of each node, by its number.

    whole: stands for the pass itself, and owns what no call does.
    numbers: the nodes' sequence numbers, descending: the order in which they run.
    nodes: the nodes, by number.
    intervals: newest first (see `ownership.newest_first`).
    tracker: has the sites where owners are booked.
    """
    found: dict[int, Owner] = {}
    owner, names_nodes = whole, tracker.names_nodes
    code, low, high = next(intervals, _END)
    for number in numbers:
        while number < owner.low:
            owner = _around(owner)
        while high > number:
            if low <= number:
                site = tracker.backward_site(owner.site, code)
                owner = Owner(site, low, owner, names_nodes)
            code, low, high = next(intervals, _END)
        if owner.is_split:
            name = nodes[number].name()
            owner = Owner(tracker.site_of_node(owner.site, name), number, owner)
        found[number] = owner
    return found


class Move(NamedTuple):
    """What happens where a pass goes over to another owner: the calls that end there,
    innermost first, and those that begin, outermost first."""

    closes: list[Site]
    opens: list[Site]


def move_between(before: Owner, owner: Owner) -> Move:
    """The move between any two owners of a pass."""
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
    return Move(closes, opens)


def _around(owner: Owner) -> Owner:
    assert owner.around is not None
    return owner.around


_END: Final[Interval] = (-1, 0, -1)
