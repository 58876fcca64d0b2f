"""Call sites: where in the tree of calls a thread can be."""

from __future__ import annotations

import weakref
from typing import Final

import torch

from torchprof_hooks.profiles.names import Phase

#: `Site.key` of sites that are not a module call.
NO_MODULE: Final = 0


class Site:
    """One (chain of calls, phase): what a thread can be working for.

    Sites form a tree. `caller` is the site that the thread leaves to come here and goes
    back to afterwards, so the time of a site without that of the sites called from it
    is its own. `path` is where it belongs for a reader: the names of the enclosing
    modules and its own.

    At most one call per site is open at a time in a thread (a module that calls itself
    opens a deeper site), so the state of the open call lives here, not on a stack.
    """

    __slots__ = (
        "backward",
        "caller",
        "children",
        "children_by_name",
        "code",
        "device_start",
        "is_entry",
        "key",
        "low",
        "module",
        "path",
        "phase",
        "start_ns",
    )

    def __init__(
        self,
        code: int,
        caller: Site | None,
        path: tuple[str, ...],
        phase: Phase,
        module: torch.nn.Module | None = None,
    ) -> None:
        self.code = code  # position in the tracker's list of sites
        self.path = path
        self.phase = phase
        self.caller = self if caller is None else caller  # the outermost is its own
        self.key = NO_MODULE
        self.module: weakref.ref[torch.nn.Module] | None = None
        if module is not None:
            self.adopt(module)
        # An entry interrupts its caller instead of being a part of it.
        self.is_entry = self.caller.phase != phase
        self.children: dict[int, Site] = {}  # by id of the module
        self.children_by_name: dict[tuple[str, Phase], list[Site]] = {}
        self.backward: dict[int, Site] = {}  # by code of the caller
        # The open call:
        self.start_ns = 0  # moved forward by the time that interruptions took
        self.low = 0  # sequence number of the first node that the call can own
        self.device_start: object = None

    def adopt(self, module: torch.nn.Module) -> None:
        """From now on, calls of `module` are calls at this site."""
        self.key = id(module)
        self.module = weakref.ref(module)

    def living_module(self) -> torch.nn.Module | None:
        """The module whose calls are calls at this site, unless it is gone."""
        return None if self.module is None else self.module()

    @property
    def name(self) -> str:
        return self.path[-1] if self.path else ""
