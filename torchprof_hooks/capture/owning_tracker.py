"""Follows one thread through its calls, and notes which autograd nodes they make."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any, Final

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.backward.heard import HeardPasses
from torchprof_hooks.capture.backward.ownership import (
    FIELDS,
    Interval,
    Ownership,
    newest_first,
)
from torchprof_hooks.capture.backward.planned import PlannedPasses
from torchprof_hooks.capture.core import OwningCursor
from torchprof_hooks.capture.module_names import ModuleNames
from torchprof_hooks.capture.profiled_function import profiled_path
from torchprof_hooks.capture.site import NO_MODULE, Site
from torchprof_hooks.capture.torch_names.autograd import (
    next_sequence_number,
)
from torchprof_hooks.capture.torch_names.modules import is_loading_on_stack
from torchprof_hooks.capture.tracker import Tracker
from torchprof_hooks.profiles.names import (
    CALLED_PHASES,
    COMPILING_NAME,
    DATA_NAME,
    ENGINE_NAME,
    OUTSIDE_NAME,
    Phase,
    communication_name,
    optimizer_name,
)

#: Phases of entries that nothing is told apart in.
_WHOLE_PHASES: Final = ("data", "waiting", "communication")


class OwningTracker(Tracker, OwningCursor):
    """Measures forward as its parent does, optimizer steps and the loading of data, and
    which autograd nodes calls make (see `OwningCursor`, and for what entries are).
    """

    backward: HeardPasses | PlannedPasses

    def __init__(self, names: ModuleNames | None = None) -> None:
        super().__init__(names)
        self.ownership = Ownership()
        self.owns_nodes = True

    # Entries: calls that interrupt their caller instead of being a part of it

    def _book_aborted(self, site: Site, end_ns: int) -> None:
        if site.is_entry:
            self.end_entry(site, end_ns, None)
        else:
            super()._book_aborted(site, end_ns)

    def tell_of_pause(self, site: Site, outputs: object, end_ns: int) -> None:
        """The entry at `site` has ended, and returned `outputs`."""
        if self.on_pause is None:
            return
        if self.site is not self.outside and site.phase != "backward":
            return
        if site.phase == "compiling":
            return  # what is compiled is still to be called
        if outputs is not None or sys.exc_info()[0] is None:
            self.on_pause(site, end_ns)

    def keep_intervals(self, low: int, outputs: object) -> None:
        """Make a record of the intervals from number `low` on."""
        own = self.take_intervals(low)
        if self.interval_count and self.site is self.outside:
            self.keep_loose()
        if own:
            self.ownership.add(self.backward.record_of(self, own, low), outputs)

    def keep_loose(self) -> None:
        """Make a record of the intervals of calls that were no entries."""
        own = self.take_intervals(-1)
        if own:
            record = self.backward.record_of(self, own, min(own[1::FIELDS]))
            self.ownership.add_loose(record)

    def entry_site(self, name: str, phase: Phase, key: int = NO_MODULE) -> Site:
        """The site of something that is not a module, called from the current site."""
        known = self.site.children_by_name.get((name, phase))
        if known is None:
            element = optimizer_name(name) if phase == "optimizer" else name
            path = (*profiled_path(self.site), element)
            known = [self.new_site(self.site, path, phase)]
            known[0].is_entry = True  # also in one of the same phase
            self.site.children_by_name[name, phase] = known
        known[0].key = key
        return known[0]

    def engine_site(self, base: Site) -> Site:
        """What the engine does itself in passes that are booked on `base`."""
        known = base.children_by_name.get((ENGINE_NAME, "backward"))
        if known is None:
            path = (*base.path[:-1], ENGINE_NAME)
            known = [self.new_site(base, path, "backward")]
            known[0].is_counted = False
            base.children_by_name[ENGINE_NAME, "backward"] = known
        return known[0]

    # Optimizers

    def optimizer_pre(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Open a step of `optimizer`."""
        if not is_dynamo_compiling() and self.works_here():
            self.drop_dead_calls(optimizer)
            if self.site.phase == "data" and not self.follows_loading:
                return
            name = type(optimizer).__name__
            self.open_entry(self.entry_site(name, "optimizer", id(optimizer)))

    def optimizer_post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Close a step of `optimizer`."""
        if not is_dynamo_compiling() and self.works_here():
            if self.site.key != id(optimizer):
                self.drop_dead_calls()
            if self.site.key == id(optimizer):
                self.close_entry(self.site)

    def begin_closure(self) -> Callable[[], object]:
        """The optimizer that steps calls the program: that is not its own time. Returns
        what is to be called at the end."""
        if not self.works_here() or self.site.phase != "optimizer":
            return lambda: None
        site = self.entry_site(OUTSIDE_NAME, "outside")
        self.open_entry(site)

        def end() -> None:
            if self.returns_to(site, perf_counter_ns()):
                self.close_entry(site)

        return end

    # Data

    #: Whether modules that are called while data is loaded are calls of their own.
    follows_loading = False

    def is_loading(self) -> bool:
        """Whether all that is done now is loading data: transforms may be modules, and
        a data set may ask a model. It is looked up: an interrupt may have kept us from
        being told of the end."""
        if self.site.phase != "data" or self.follows_loading:
            return False
        return is_loading_on_stack()

    def looks_away_from(self, module: torch.nn.Module) -> bool:
        """Also from modules that are called to load data (see the parent class)."""
        return self.is_loading() or super().looks_away_from(module)

    def unwind_to(self, module: torch.nn.Module) -> Site:
        """See the parent class. What ends while data is loaded did not begin for us."""
        return self.outside if self.is_loading() else super().unwind_to(module)

    def begin_loading(self, source: object, gives_batch: bool) -> Site | None:
        """Begin to wait for `source`, an iterator over batches, or a loader that makes
        one. None if that is a part of loading: a data set may load from another."""
        self.drop_dead_calls(source)
        if self.site.phase == "data":
            return None
        site = self.entry_site(DATA_NAME, "data", id(source))
        if not gives_batch:
            site = self._uncounted(site)
        self.open_entry(site)
        return site

    def end_loading(self, site: Site, loaded: object) -> None:
        """What was waited for at `site` is there."""
        if self.returns_to(site, perf_counter_ns()):
            self.close_entry(site, loaded)
        self.fold_if_due()

    def loading_failed(self, site: Site, error: BaseException) -> None:
        """What was waited for at `site` will not come: that there is no more is not
        counted as a batch, and takes its time all the same."""
        now_ns = perf_counter_ns()
        if not self.returns_to(site, now_ns):
            return
        if isinstance(error, StopIteration):
            self.site = self._uncounted(site)
            self.close_entry(self.site)
        else:
            self.abort_down_to(site.caller, now_ns)

    def _uncounted(self, site: Site) -> Site:
        """A site next to `site`, for what takes time there without being a call, with
        the state of the open call."""
        namesakes = site.caller.children_by_name[site.name, site.phase]
        if len(namesakes) == 1:
            namesakes.append(self.new_site(site.caller, site.path, site.phase))
        other = namesakes[1]
        other.is_counted = False
        other.continue_call_of(site)
        return other

    # Communication with other processes

    def begin_communication(self, collective: str, is_call: bool) -> Site | None:
        """Begin a call of a function of ``torch.distributed``, or to wait for what one
        has begun. None if that is a part of something else: of another such call, or of
        loading data."""
        if self.site.phase in _WHOLE_PHASES:
            return None
        site = self.entry_site(communication_name(collective), "communication")
        if not is_call:
            site = self._uncounted(site)
        self.open_entry(site)
        return site

    def end_communication(self, site: Site) -> None:
        """What was begun at `site` is done."""
        if self.returns_to(site, perf_counter_ns()):
            self.close_entry(site)

    def communication_failed(self, site: Site) -> None:
        """What was begun at `site` is left by an exception."""
        now_ns = perf_counter_ns()
        if self.returns_to(site, now_ns):
            self.abort_down_to(site.caller, now_ns)

    def communicated(self, collective: str, start_ns: int) -> None:
        """All that was done since `start_ns` was communication, no call of its own."""
        site = self.begin_communication(collective, is_call=False)
        if site is not None:
            site.start_ns = max(start_ns, site.caller.start_ns)
            self.close_entry(site)

    # What torch.compile does

    def begin_compiling(self) -> Site | None:
        """torch.compile begins to compile, in the middle of whatever runs here: that is
        not the time of the call that it is done for. None if another thread compiles.
        """
        if not self.works_here():
            return None
        site = self.entry_site(COMPILING_NAME, "compiling")
        site.is_region = True
        self.open_entry(site)
        return site

    def end_compiling(self, site: Site) -> None:
        """It has ended what it began at `site`."""
        if self.works_here() and self.returns_to(site, perf_counter_ns()):
            self.close_entry(site)

    def is_in_optimizer(self) -> bool:
        """Whether an optimizer is stepping."""
        return any(site.phase == "optimizer" for site in self.open_sites())

    # Calls that do not end in order

    def returns_to(self, site: Site, end_ns: int) -> bool:
        """Close what was left open inside of `site`; False if `site` is not open any
        more itself: measuring was stopped inside of it."""
        if all(open_site is not site for open_site in self.open_sites()):
            return False
        self.abort_down_to(site, end_ns)
        return True

    # What is known of the owners of nodes while calls are open

    def is_inside_call(self) -> bool:
        """Whether a module call is open, however far out."""
        return any(site.phase in CALLED_PHASES for site in self.open_sites())

    def intervals_of_open_calls(self) -> Iterator[Interval]:
        """Intervals of open calls, and of those that ended inside; newest first."""
        high = next_sequence_number()
        for site in reversed(list(self.open_sites())):
            if site.phase in CALLED_PHASES:
                yield site.code, site.low, high
        yield from newest_first(self.intervals)
