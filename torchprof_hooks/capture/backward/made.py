"""Who owns the nodes that a planned pass with ``create_graph=True`` makes."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torchprof_hooks.capture.backward.backward_pass import BackwardPass
from torchprof_hooks.capture.backward.plan import Move, Owner
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.torch_names.autograd import next_sequence_number

if TYPE_CHECKING:
    from torchprof_hooks.capture.tracking.tracker import Tracker


def own_made_nodes(tracker: Tracker, running: BackwardPass, move: Move) -> None:
    """In a pass with ``create_graph=True``, the nodes that a module's backward makes
    belong to that module's backward in turn.

    Each thread counts its own nodes, and the engine runs parts of a pass in others than
    the one that is followed: an interval has both its numbers from one thread.
    """
    here, number = get_ident(), next_sequence_number()
    if here != running.counts_in:  # open intervals end there, and begin anew here
        _own(tracker, running, _open_sites(move.before))
        running.counts_in = here
        for site in _open_sites(running.owner):
            site.low = number
    running.number = number
    _own(tracker, running, move.closes)
    for site in move.opens:
        site.low = number


def _own(tracker: Tracker, running: BackwardPass, sites: Iterable[Site]) -> None:
    """End the intervals of calls, innermost first, at the number that was read last."""
    thread, high = running.counts_in, running.number
    for site in sites:
        if site.low == high:
            continue
        if thread == tracker.thread:
            tracker.own((site.code, site.low, high))
        else:
            elsewhere = tracker.passes[0].elsewhere
            assert elsewhere is not None  # of passes that are planned
            elsewhere.setdefault(thread, []).extend((site.code, site.low, high))


def _open_sites(owner: Owner) -> Iterator[Site]:
    """The sites of open calls, innermost first, without that of the pass itself."""
    while owner.around is not None:
        yield owner.site
        owner = owner.around
