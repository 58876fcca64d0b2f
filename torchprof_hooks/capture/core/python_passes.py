"""The core in Python: backward passes. It plans them (see `PlannedPasses`), so these
methods of `Cursor` do nothing: they describe those of the native core, which the engine
tells of each node."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchprof_hooks.capture.backward.backward_pass import BackwardPass
    from torchprof_hooks.capture.core.python import Cursor
    from torchprof_hooks.capture.record.site import Site


def enter_pass(  # noqa: PLR0917
    self: Cursor,
    base: Site,
    divides: bool = True,
    makes_graph: bool = False,
    names_nodes: bool = False,
    calls: list[int] | None = None,
    *,
    engine: Site | None = None,
    started: BackwardPass | None = None,
) -> None:
    """A pass begins. Its time is booked on `base` where no call owns the nodes.

    divides: whether nodes are to be booked on their owners.
    names_nodes: whether nodes without a function are functions of their own.
    calls: intervals of the calls that are open around the pass, innermost first.
    engine: where the time until the first node runs is booked, if not on `base`.
    started: is put into `passes` in this call, so that no interrupt comes in between.
    """


def engine_ends(self: Cursor) -> None:
    """A node is about to run. If it is the first, the engine's own time ends here."""


def leave_pass(self: Cursor, started: BackwardPass, failed: bool = False) -> int | None:
    """The pass has ended: close what is open in it as of the end of its last node, and
    return that moment; None if no node has run, or the core does not know the pass. A
    pass that it knows is removed from `passes`."""
    return None


def drop_pass(self: Cursor, started: BackwardPass) -> None:
    """The pass is dead, and its calls are closed. If the core knows the pass, it is
    removed from `passes`."""


def begin_outer_pass(  # noqa: PLR0917
    self: Cursor,
    started: BackwardPass,
    base: Site,
    engine: Site,
    names_nodes: bool,
    makes_graph: bool,
    since_ns: int,
    until_ns: int,
) -> None:
    """Do at once all that is to be done when a pass begins outside of everything. Most
    passes do; and dozens of small Python functions would be slow there, with the
    processor's caches cold for them.

    base, engine: where the pass, and what the engine does itself, are booked.
    since_ns, until_ns: see `Preparation`.
    """


def end_outer_pass(
    self: Cursor, started: BackwardPass, engine: Site, outputs: object
) -> bool:
    """Do at once all that is to be done when such a pass has ended, and did not fail.
    False, and nothing is done, if anything rare has happened in it."""
    return False


def runs_task(self: Cursor, task: int) -> bool:
    """Whether `task` is the engine's number for one of the passes that run."""
    return False
