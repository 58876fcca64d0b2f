"""The core in Python: backward passes, which are planned (see `PlannedPasses`). These
methods of `Cursor` say what the native core does, which hears of nodes."""

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
    """A pass begins that is booked on `base`, where nobody owns it.

    divides: whether nodes are to be booked on their owners.
    names_nodes: whether nodes without a function are functions of their own.
    calls: intervals of calls that are open around it, as they end.
    engine: where the time until the first node runs is booked, if not on `base`, whose
        own begins with that.
    started: goes into `passes`; no interrupt comes in between.
    """


def engine_ends(self: Cursor) -> None:
    """The first node of the pass is about to run, if none has."""


def leave_pass(self: Cursor, started: BackwardPass, failed: bool = False) -> int | None:
    """It has ended: closes what is open in it when its last node ended, and tells that
    moment; None if no node has run, or the core does not have it. It is in `passes` no
    more."""
    return None


def drop_pass(self: Cursor, started: BackwardPass) -> None:
    """It is dead, and closed. If the core had it, it is in `passes` no more."""


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
    """All that is to be done when a pass begins outside of everything, at once: most
    do, and between two steps, the caches of a processor are cold for dozens of small
    functions of Python's.

    base, engine: where it, and what the engine does itself, are booked.
    since_ns, until_ns: see `Preparation`.
    """


def end_outer_pass(
    self: Cursor, started: BackwardPass, engine: Site, outputs: object
) -> bool:
    """All that is to be done when a pass has ended that did not fail, if nothing rare
    has happened in it: whether that is done."""
    return False


def runs_task(self: Cursor, task: int) -> bool:
    """Whether the engine calls one of the passes that run by this number."""
    return False
