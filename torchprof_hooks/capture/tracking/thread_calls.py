"""The calls of one thread: where each belongs, and what becomes of those that do not
end in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

import torch

from torchprof_hooks.capture.attach.compiling import compile_shield
from torchprof_hooks.capture.backward.ownership import (
    Interval,
    Ownership,
    newest_first,
)
from torchprof_hooks.capture.backward.parts import Parts
from torchprof_hooks.capture.core import Cursor
from torchprof_hooks.capture.core.span_log import Times
from torchprof_hooks.capture.record.call_tree import CallTree
from torchprof_hooks.capture.record.exchanges import Exchanges
from torchprof_hooks.capture.record.garbage_log import GarbageLog
from torchprof_hooks.capture.record.module_names import ModuleNames
from torchprof_hooks.capture.record.site import NO_MODULE, Site
from torchprof_hooks.capture.torch_names.autograd import next_sequence_number
from torchprof_hooks.capture.torch_names.compiler import (
    is_compiled_module,
    is_tracing,
)
from torchprof_hooks.capture.torch_names.modules import (
    error_of_call,
)
from torchprof_hooks.capture.tracking.aborted_calls import (
    abort_all,
    abort_call,
    abort_down_to,
    count_if_aborted,
    drop_dead_calls,
    last_stamp_ns,
    leave_entry,
    returns_to,
    unwind_to,
)
from torchprof_hooks.capture.tracking.owned_intervals import (
    forget_oldest,
    keep_elsewhere,
    keep_intervals,
    keep_loose,
    open_frames,
)
from torchprof_hooks.profiles.names import CALLED_PHASES, Phase

if TYPE_CHECKING:
    from torchprof_hooks.capture.backward.backward_pass import Passes

#: A number that no thread has.
_NO_THREAD: Final = -1


class ThreadCalls(Cursor):
    """Follows one thread through its calls, and notes which autograd nodes they make.

    The thread is at exactly one site at any moment. A module's pre-hook moves it to the
    site of the call, the post-hook closes the call and moves it back: that is what the
    core does. Names, totals and tables are made of that later, outside of the measured
    work.

    tree, names: the sites, and the names of the modules.
    exchanges: what was exchanged with other processes.
    garbage: what Python's collections of garbage took.
    backward: what follows backward passes, and divides them among the owners of their
        nodes; None: passes are not followed, and nobody asks for owners.
    is_replaced: whether a module has a hook of its own in place of the one served here.
    """

    def __init__(self, names: ModuleNames | None, backward: Passes | None) -> None:
        super().__init__()
        self.garbage = GarbageLog()
        self.tree = CallTree(names or ModuleNames(), self.sites, self.garbage)
        self.names = self.tree.names
        self.outside = self.site = self.tree.new_site(None, (), "outside")
        self.backward = backward
        self.owns_nodes = backward is not None
        self.divides = backward is not None and backward.divides
        self.ownership = Ownership()
        self.parts = Parts()
        if backward is not None and self.divides and not backward.looks_at_nodes:
            self.ties = self.ownership.ties  # records are the core's
        self.exchanges = Exchanges()
        self.aborted_calls = 0
        self.born_ns = perf_counter_ns()
        self.retired_ns: int | None = None
        self.is_replaced: Callable[[torch.nn.Module], bool] = lambda module: False

    def called_site(self, module: torch.nn.Module) -> Site | None:
        """The site of a call of `module` from the current site, which does not know it
        yet (or lost it: see `drop_dead_calls`); None if the call is not to be followed.
        """
        began_ns = perf_counter_ns()
        if self.looks_away_from(module):
            self.site.reading_ns += perf_counter_ns() - began_ns  # in each such call
            return None
        self.drop_dead_calls(module)
        if self.watches and self.meters is not None:
            # Calls around this one may have put a device into use.
            self.meters.look_for_devices(self)
        return self.tree.site_of_module(self.site, module, began_ns)

    def look_for_devices(self) -> None:
        """An entry is about to begin: see whether devices have come into use."""
        if self.meters is not None:
            began_ns = perf_counter_ns()
            self.meters.look_for_devices(self)
            self.site.reading_ns += perf_counter_ns() - began_ns

    def looks_away_from(self, module: torch.nn.Module) -> bool:
        """Whether a call of `module`, not seen yet from the current site, is not to be
        followed: it is left to a hook of the module's own, or is the compiler's, or a
        part of a compiled region. A region is one owner, even if some of the modules
        inside run in Python."""
        compile_shield.watch()
        around = self.site.living_module()
        return (
            self.site.is_region
            or (around is not None and is_compiled_module(around))
            or is_tracing()
            or self.is_replaced(module)
        )

    def retire(self) -> None:
        """The followed thread has ended."""
        self.thread = _NO_THREAD
        self.retired_ns = perf_counter_ns()

    def age_ns(self) -> int:
        """How long the thread has been followed."""
        end_ns = perf_counter_ns() if self.retired_ns is None else self.retired_ns
        return end_ns - self.born_ns

    def entry_site(self, name: str, phase: Phase, key: int = NO_MODULE) -> Site:
        """The site of something that is not a module, called from the current site."""
        return self.tree.entry_site(self.site, name, phase, key)

    def open_sites(self) -> Iterator[Site]:
        """The current site and those around it, innermost first, without `outside`."""
        site = self.site
        while site is not self.outside:
            yield site
            site = site.caller

    def is_open(self, module: torch.nn.Module) -> bool:
        """Whether a call of `module` is open."""
        return any(site.key == id(module) for site in self.open_sites())

    def garbage_collected(self, took_ns: int) -> None:
        """Python has looked for garbage in the running thread."""
        if self.works_here():
            self.garbage.add(self.site.code, took_ns)

    # Calls that do not end in order

    unwind_to = unwind_to
    returns_to = returns_to
    leave_entry = leave_entry
    drop_dead_calls = drop_dead_calls
    abort_call = abort_call
    abort_down_to = abort_down_to
    abort_all = abort_all
    count_if_aborted = count_if_aborted
    last_stamp_ns = last_stamp_ns

    # Ends that others ask for

    def tell_of_pause(self, site: Site, outputs: object, end_ns: int) -> None:
        """The entry at `site` has ended, and returned `outputs`."""
        if self.on_pause is None:
            return
        is_call = site.phase == "forward" and site.module is not None
        if self.graphs_left and is_call and self._goes_untold(site, outputs, end_ns):
            return
        if self.site is not self.outside and site.phase != "backward":
            return
        if site.phase == "compiling":
            return  # what is compiled is still to be called
        if outputs is not None or error_of_call() is None:
            self.on_pause(site, end_ns)

    def _goes_untold(self, site: Site, outputs: object, end_ns: int) -> bool:
        """Whether the end of the call at `site` is only counted, and not told. The
        native core decides the same itself, before it comes here."""
        if outputs is None or self.site is not self.outside:
            return False
        if torch.is_grad_enabled() and next_sequence_number() != site.low:
            self.graphs_left -= 1
            self.is_idle = False
        elif self.is_idle:
            if not self.evaluations_left:
                return False
            self.evaluations_left -= 1
            self.last_evaluation_ns = end_ns
        return True

    # Owners of nodes

    keep_intervals = keep_intervals
    forget_oldest = forget_oldest
    open_frames = open_frames
    keep_loose = keep_loose
    keep_elsewhere = keep_elsewhere

    def is_inside_call(self) -> bool:
        """Whether a module call is open, however far out."""
        site = self.site  # by a loop: this is asked in every pass
        while site is not self.outside and site.phase not in CALLED_PHASES:
            site = site.caller
        return site is not self.outside

    def intervals_of_open_calls(self) -> Iterator[Interval]:
        """Intervals of open calls, and of those that ended inside; newest first."""
        yield from self.open_intervals()
        yield from newest_first(self.intervals)

    def open_intervals(self) -> Iterator[Interval]:
        """Intervals of open calls, which go on, outermost first."""
        high = next_sequence_number()
        for site in reversed(list(self.open_sites())):
            if site.phase in CALLED_PHASES:
                yield site.code, site.low, high

    # Reading

    def times(self) -> Times:
        """What has been measured so far."""
        return Times(*self.read_times())
