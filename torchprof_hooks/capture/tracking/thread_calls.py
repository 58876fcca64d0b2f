"""The calls of one thread: where each belongs, and what becomes of those that do not
end in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

import torch

from torchprof_hooks.capture.attach.compiling import compile_shield
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
    modules_on_stack,
)
from torchprof_hooks.capture.torch_names.torch_utils import STOPS_RECOMPUTATION
from torchprof_hooks.profiles.names import Phase

if TYPE_CHECKING:
    from torchprof_hooks.capture.backward.backward_pass import Passes

#: A number that no thread has.
_NO_THREAD: Final = -1
#: Phases in which no module is called, and no data loaded: an optimizer that has its
#: loss computed again does so by a closure.
_WITHOUT_MODULES: Final = ("communication", "optimizer", "waiting")


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
    follows_loading: whether modules that are called while data is loaded are calls of
        their own.
    shown_by_hooks: whether hooks show it module calls.
    is_left_out: whether calls of a module from a site are not to be followed: if it has
        a hook of its own in place of the one served here, say.
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
        self.exchanges = Exchanges()
        self.aborted_calls = 0
        self.follows_loading = False
        self.born_ns = perf_counter_ns()
        self.retired_ns: int | None = None
        self.shown_by_hooks = False
        self.is_left_out: Callable[[Site, torch.nn.Module], bool] = lambda *_: False

    def called_site(self, module: torch.nn.Module) -> Site | None:
        """The site of a call of `module` from the current site, which does not know it
        yet; None if the call is not to be followed."""
        began_ns = perf_counter_ns()
        self.close_left_entries()
        if self.shown_by_hooks:
            self.close_left_calls()
        if self.looks_away_from(module):
            self.site.reading_ns += perf_counter_ns() - began_ns  # in each such call
            return None
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
        part of a compiled region, or loads data. A region is one owner, even if some of
        the modules inside run in Python."""
        if self.is_loading():
            return True
        compile_shield.watch()
        around = self.site.living_module()
        return (
            self.site.is_region
            or (around is not None and is_compiled_module(around))
            or is_tracing()
            or self.is_left_out(self.site, module)
        )

    def is_loading(self) -> bool:
        """Whether all that is done now is loading data: transforms may be modules, and
        a data set may call a model."""
        return self.site.phase == "data" and not self.follows_loading

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

    def is_open(self, called: object) -> bool:
        """Whether a call of this module is open, or a step of this optimizer."""
        return any(site.key == id(called) for site in self.open_sites())

    def garbage_collected(self, took_ns: int) -> None:
        """Python has looked for garbage in the running thread."""
        if self.works_here():
            self.garbage.add(self.site.code, took_ns)

    # Calls that do not end in order: an exception or an interrupt went through them

    def unwind_to(self, called: object) -> Site:
        """Make the call of a module, or of an optimizer, the current one again, closing
        calls inside it that were left by an exception of which nobody was told.
        `outside` if that call is not open: it began before the thread was followed, or
        as data was loaded."""
        began_ns = perf_counter_ns()
        if self.is_loading() or not self.is_open(called):
            self.site.reading_ns += perf_counter_ns() - began_ns
            return self.outside
        last_ns = self.last_stamp_ns()
        while self.site.key != id(called):
            self.abort_call(last_ns)
        return self.site

    def close_left_entries(self) -> None:
        """A module is called, or data loaded: close what does neither, and so has been
        left by an exception of which nobody was told."""
        while self.site.phase in _WITHOUT_MODULES:
            self.abort_call(self.last_stamp_ns())

    def close_left_calls(self) -> None:
        """A module is called, as a hook tells. Hooks do not tell when an interrupt
        leaves a call: close calls that are not on the stack any more."""
        calls: list[Site] = []
        for site in self.open_sites():
            if site.phase == "backward":  # maybe in another thread than what is around
                break
            if site.key != NO_MODULE and site.is_called:
                calls.append(site)
        # The call that begins is on the stack already.
        alive = map(id, modules_on_stack()[:-1])
        for site in reversed(calls):
            if site.key not in alive:  # which goes on behind what it has found
                self.abort_down_to(site.caller, self.last_stamp_ns())
                return

    def returns_to(self, site: Site, end_ns: int) -> bool:
        """Close what was left open inside of `site`; False if `site` is not open any
        more itself: measuring was stopped inside of it."""
        if self.site is not site:
            if all(open_site is not site for open_site in self.open_sites()):
                return False
            self.abort_down_to(site, end_ns)
        return True

    def leave_failed(self, site: Site, end_ns: int) -> None:
        """An exception has left the call at `site`: close it, if it is still open."""
        if self.returns_to(site, end_ns):
            self.abort_down_to(site.caller, end_ns)

    def leave_entry(self, site: Site, outputs: object = None) -> None:
        """What was begun at `site` is done: end it, if it is still open."""
        if self.returns_to(site, perf_counter_ns()):
            self.close_entry(site, outputs)

    def abort_call(self, end_ns: int) -> None:
        """Close the current call, which an exception went through."""
        site = self.site
        site.cut += 1
        self.aborted_calls += 1
        if self.callbacks is not None:
            self.callbacks.aborted(site)
        self.site = site.caller
        self.own_until(site, next_sequence_number())
        end_ns = max(end_ns, site.start_ns)
        if site.is_entry:
            self.end_entry(site, end_ns)
        # An interrupt may have come in the middle of a move, after the call was booked.
        elif site.phase != "backward" or not self.is_booked(site):
            self.book((site.code, site.start_ns, end_ns))

    def abort_down_to(self, site: Site, end_ns: int) -> None:
        """Close calls inside `site` that an exception left open."""
        while self.site is not site and self.site is not self.outside:
            self.abort_call(end_ns)

    def abort_all(self, by_exception: bool) -> None:
        """Close whatever is open: as of now, if an exception is just leaving it, else
        as of the last moment at which it is known to have run."""
        end_ns = perf_counter_ns() if by_exception else self.last_stamp_ns()
        self.abort_down_to(self.outside, end_ns)

    def count_if_aborted(self) -> None:
        """After a forward without outputs: count it as aborted if it has raised."""
        error = error_of_call()
        if error is not None and type(error).__name__ != STOPS_RECOMPUTATION:
            self.aborted_calls += 1

    def last_stamp_ns(self) -> int:
        """The latest moment at which the current call is known to have been running:
        what came after belongs to nobody, rather than to a guess."""
        return max(self.site.start_ns, self.last_booked_ns())

    # Ends that others ask for

    def tell_of_pause(self, site: Site, outputs: object, end_ns: int) -> None:
        """The entry at `site` has ended, and returned `outputs`."""
        if self.on_pause is None:
            return
        if self.site is not self.outside and site.phase != "backward":
            return
        if site.phase == "compiling":
            return  # what is compiled is still to be called
        if outputs is not None or error_of_call() is None:
            self.on_pause(site, end_ns)

    # Reading

    def times(self) -> Times:
        """What has been measured so far."""
        return Times(*self.read_times())
