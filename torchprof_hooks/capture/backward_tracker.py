"""Follows one thread through forward, backward, recomputation and optimizer steps."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Iterator
from time import perf_counter_ns
from typing import Final

import torch

from torchprof_hooks.capture.backward.backward_pass import BackwardPass, PassRequest
from torchprof_hooks.capture.backward.gradient_reduction import gradient_reduction
from torchprof_hooks.capture.backward.heard import HeardPasses
from torchprof_hooks.capture.backward.planned import PlannedPasses
from torchprof_hooks.capture.core import CORE
from torchprof_hooks.capture.module_names import ModuleNames
from torchprof_hooks.capture.owning_tracker import OwningTracker
from torchprof_hooks.capture.site import NO_MODULE, Site
from torchprof_hooks.capture.torch_names.autograd import (
    current_graph_task,
    passes_on_stack,
)
from torchprof_hooks.profiles.names import BACKWARD_NAME, Phase

#: By what the site of a recomputation is known.
_RECOMPUTATION: Final[tuple[str, Phase]] = ("", "recompute")


def make_passes(divides: bool = True) -> HeardPasses | PlannedPasses:
    """How backward passes are followed with the core that runs, where nobody but the
    tracker has to be told of nodes."""
    if CORE.module is not None:
        return HeardPasses(divides)
    return PlannedPasses(divides)


class BackwardTracker(OwningTracker):
    """Measures forward, backward and recompute of every module, and optimizer steps.

    A module called while a pass runs is being recomputed. Recomputations are entries,
    and so is a pass, unless it runs inside of another one.

    backward: how passes are followed, and divided among their owners.
    names_nodes: whether nodes that no function is known for are functions of their own.
    """

    def __init__(
        self,
        names: ModuleNames | None = None,
        backward: HeardPasses | PlannedPasses | None = None,
    ) -> None:
        super().__init__(names)
        self.backward = make_passes() if backward is None else backward
        self.undivided_passes = 0  # for nodes of several threads with one number
        self.names_nodes = False

    def works_here(self) -> bool:
        """Whether the running thread works for the one that is followed: on devices,
        the engine runs backward passes in threads of its own."""
        thread = get_ident()
        if thread == self.thread or not self.passes:
            return thread == self.thread
        task = current_graph_task()
        return self.runs_task(task) or any(
            p.thread == thread or p.task == task != -1 for p in self.passes
        )

    def _call_phase(self) -> Phase:
        in_backward = self.site.phase in ("backward", "recompute")
        return "recompute" if in_backward else "forward"

    def _calls_on_stack(self) -> Iterator[Site]:
        # Backward sites have no frame of their own; what is around a pass belongs to
        # the code that started it and is looked at when the pass is over.
        running = self.passes[-1] if self.passes else None
        floor = self.backward.owner_of(running) if running else self.outside
        for site in self.open_sites():
            if site is floor:
                return
            if site.key != NO_MODULE:
                yield site

    def drop_dead_calls(self, beginning: object = None) -> None:
        """Also ends passes that an interrupt kept from being ended."""
        if self.passes and get_ident() == self.thread:
            alive = passes_on_stack()
            while len(self.passes) > alive:
                self.abort_down_to(self.passes[-1].base, self._last_stamp())
                dead = self._drop_pass()
                if dead.opened_base:
                    self.abort_call(self._last_stamp())
        if not self.passes:
            left = [site for site in self.open_sites() if site.phase == "backward"]
            if left:
                self.abort_down_to(left[-1].caller, self._last_stamp())
        super().drop_dead_calls(beginning)

    def pass_is_over(self, ended: BackwardPass) -> None:
        """`ended` will not be heard of again."""

    def begin_pass(self, request: PassRequest) -> None:
        """A backward pass is about to begin."""
        self.drop_dead_calls()
        if self.site.phase == "data" and not self.follows_loading:
            return  # all that is done there is loading
        found = base = self.site
        try:
            if found.phase != "backward":
                base = self.entry_site(BACKWARD_NAME, "backward")
                self.open_entry(base)
            started = BackwardPass(base, base is not found, request.makes_graph)
            self.backward.begin(self, started, request)
        except BaseException:  # an interrupt: leave nothing open, and pass it on
            self.abort_down_to(found, perf_counter_ns())
            raise

    def _drop_pass(self) -> BackwardPass:
        """The pass that began last is not heard of any more."""
        dead = self.passes.pop()
        self.backward.drop(dead)
        self.pass_is_over(dead)
        return dead

    def moved(self, closed: list[Site], opened: list[Site]) -> None:
        """A pass has gone over to other owners (if `tells_moves`): calls that ended,
        innermost first, and those that began, outermost first."""

    def site_of_node(self, caller: Site, name: str) -> Site:
        """The site of a node that no function is known for."""
        raise NotImplementedError  # names_nodes is not asked for

    def _book_aborted(self, site: Site, end_ns: int) -> None:
        # An interrupt may have come in the middle of a move, after it was booked.
        if site.phase != "backward" or site.is_entry or not self.is_booked(site):
            super()._book_aborted(site, end_ns)

    def backward_site(self, caller: Site, code: int) -> Site:
        """The site of the backward of the call at a forward site (its code), inside of
        another backward site."""
        site = caller.backward.get(code)
        if site is None:
            forward = self.sites[code]
            path, function = forward.path, forward.function
            site = self.new_site(caller, path, "backward", function=function)
            site.module = forward.module  # but no key: no forward ends here
            site.is_hidden, site.is_region = forward.is_hidden, forward.is_region
            if forward.phase != "backward":
                site.described = forward.described
            caller.backward[code] = site
        return site

    # Recomputation

    def begin_recomputation(self) -> None:
        """A node asks for a tensor that is to be computed again: what is done for that
        is not the node's time, nor its own. Whose it is shows when a module is called
        in there: that of the module around it, or of that module, if it is an outermost
        one. If none is called, it is the recompute of the node's owner."""
        asking = self.site
        if asking.phase != "backward":
            return
        known = asking.children_by_name.get(_RECOMPUTATION)
        if known is None:
            path = asking.enclosing.path
            site = self.new_site(asking, path, "recompute")
            site.is_recomputation = True
            site.is_counted = False
            known = asking.children_by_name[_RECOMPUTATION] = [site]
        self.open_entry(known[0])

    def end_recomputation(self) -> None:
        """The tensors are there."""
        for site in self.open_sites():
            if site.is_recomputation:
                if self.returns_to(site, perf_counter_ns()):
                    self.close_entry(site)
                return

    def find_site(self, module: torch.nn.Module) -> Site:
        """See the parent class."""
        caller, site = self.site, super().find_site(module)
        if caller.is_recomputation and site.caller is caller:
            caller.path = site.path[:-1] or site.path
        return site

    def end_pass(self, outputs: object, failed: bool) -> None:
        """The backward pass that began last is over."""
        if not self.passes:  # measuring was stopped in the middle of it
            return
        if self.site.phase == "waiting" and not failed:
            self.close_entry(self.site)
        now_ns = perf_counter_ns()
        ended = self.passes[-1]
        ended.failed = failed
        if failed:
            self.aborted_calls += self.backward.open_calls(ended)
        self.fold_if_due()
        self.abort_down_to(self.backward.owner_of(ended), now_ns)
        try:
            self.backward.end(ended, now_ns)
        finally:  # a callback may raise in there
            self._pass_ended(ended, outputs)

    def _pass_ended(self, ended: BackwardPass, outputs: object) -> None:
        self.passes.pop()
        self.pass_is_over(ended)
        if not self.passes:
            self.backward.rest()
            gradient_reduction.is_expected = False
        if ended.opened_base:
            self.close_entry(ended.base, outputs)

    def abort_all(self, by_exception: bool) -> None:
        """Close whatever is open (see the parent class)."""
        super().abort_all(by_exception)
        while self.passes:
            self._drop_pass()
        self.backward.rest()
