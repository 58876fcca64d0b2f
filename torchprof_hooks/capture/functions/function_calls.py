"""Which functions of a thread are followed, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch

from torchprof_hooks.capture.attach.attachments import Attachment
from torchprof_hooks.capture.attach.function_mode import ModeOnStack
from torchprof_hooks.capture.backward.backward_pass import BackwardPass
from torchprof_hooks.capture.functions.function_sites import FunctionSites
from torchprof_hooks.capture.record.function_names import (
    function_name,
    implementation_of,
    lives_as_long_as_torch,
    region_name,
)
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.torch_names.checkpoints_and_loaders import (
    STOPS_RECOMPUTATION,
)
from torchprof_hooks.capture.torch_names.compiler import (
    CompiledCall,
    is_compiled_module,
    is_tracing,
)
from torchprof_hooks.capture.torch_names.functions import (
    function_modes,
    push_function_mode,
    remove_function_mode,
    shapes_of,
)

if TYPE_CHECKING:
    from torchprof_hooks.capture.tracking.tracker import Tracker


class FunctionCalls:
    """Measures functions for a tracker.

    Like a module call, a function call has a site, inside that of its caller. A
    function owns the nodes that it makes; a node without a known function counts as a
    function of its own, named after the node.

    by_shapes: whether calls with inputs of different shapes are told apart.
    counts_flops: see `FunctionSites`.
    wants: which functions are followed, in forward and in backward; by default all.
    """

    #: Whether Python code of ours runs at each call, which adds to the caller's time.
    runs_python = True

    def __init__(
        self,
        *,
        by_shapes: bool = False,
        counts_flops: bool = False,
        wants: Callable[[Any], bool] | None = None,
    ) -> None:
        self.by_shapes = by_shapes
        self.follows_all = wants is None
        self.sites: FunctionSites
        self.mode_on_stack: ModeOnStack
        #: What shows functions to the tracker.
        self.shown_by: Attachment
        #: Name of the custom Function whose transformed form is running: torch.func
        #: applies the Function itself inside of that.
        self.transformed: str | None = None
        #: Whether a function has a hook of its own that replaces the one served here.
        self.is_replaced: Callable[[Any], bool] = lambda function: False
        #: Called when a function is called that is new at the current site.
        self.at_unknown: Callable[[], object] = lambda: None
        self.counts_flops = counts_flops
        self._wants = wants

    def serve(self, tracker: Tracker) -> None:
        """Work for `tracker`, and for no other."""
        self.sites = FunctionSites(tracker.tree, self.counts_flops)
        self.shown_by = self.mode_on_stack = ModeOnStack(tracker)
        tracker.by_shapes = self.by_shapes

    # Forward

    def shown(
        self, tracker: Tracker, function: Any, args: Any, kwargs: dict[str, Any] | None
    ) -> Any:
        """Call a function that a mode was shown, and measure the call if the function
        is to be followed."""
        try:
            site = tracker.site.functions[function]
        except (KeyError, TypeError):
            site = self.find(tracker, function)
        if site is None:
            return function(*args, **(kwargs or {}))
        return self.call(tracker, site, function, args, kwargs or {})

    def call(
        self,
        tracker: Tracker,
        site: Site,
        function: Any,
        args: Any,
        kwargs: dict[str, Any],
    ) -> Any:
        """Call `function` at a site from `find`, and measure the call."""
        if self.by_shapes and not site.is_hidden:
            shapes = shapes_of((*args, *kwargs.values()) if kwargs else args)
            try:
                site = site.by_shapes[shapes]
            except KeyError:
                site = self.sites.seen(site, function, args, kwargs)
        try:
            tracker.open_call(site)
            outputs = function(*args, **kwargs)
            end_ns = perf_counter_ns()
            if tracker.returns_to(site, end_ns):  # else measuring was stopped in it
                tracker.close_call(site, end_ns)
        except BaseException as error:
            self.aborted(tracker, site, error)
            raise
        return outputs

    def find(self, tracker: Tracker, function: Any) -> Site | None:
        """The site of a call of `function`, which is new at the current site; None if
        the call is not to be followed."""
        caller = tracker.site
        if caller.phase == "backward" and not _is_recomputing(tracker):
            return None
        self.at_unknown()
        if is_inside_region(caller) or is_tracing():
            return None
        name = function_name(function)
        is_wanted = name is not None and (self._wants is None or self._wants(function))
        site = None
        if is_wanted and name:
            runs = implementation_of(function)
            site = self.sites.site_of_function(caller, name, runs=runs)
        if site is not None and self.is_replaced(function):
            site = self.sites.hidden(site)
        if caller.phase != "backward" and lives_as_long_as_torch(function):
            caller.functions[function] = site
        return site

    def forget(self, tracker: Tracker) -> None:
        """Forget which functions are to be followed: the next calls ask again."""
        for site in tracker.sites:
            site.functions.clear()

    def leave(self, tracker: Tracker, function: Any) -> None:
        """`function` is not to be followed any more, nor are its open calls."""
        self.forget(tracker)

    # Calls that do not end by returning, or not in order

    def aborted(self, tracker: Tracker, site: Site, error: BaseException) -> None:
        """An exception is leaving the call at `site`: close it."""
        now_ns = perf_counter_ns()
        aborted_calls = tracker.aborted_calls
        tracker.leave_failed(site, now_ns)
        if type(error).__name__ == STOPS_RECOMPUTATION:
            tracker.aborted_calls = aborted_calls

    def drop_open_calls(self) -> None:
        """Nobody is to be told any more of calls that are open."""

    # Compiled functions

    def begin_region(self, tracker: Tracker, call: CompiledCall) -> Site | None:
        """A function made by torch.compile begins. It counts as one function, whatever
        it does inside. None if it is inside of another one."""
        if tracker.site.is_region or is_tracing() or self._wants is not None:
            return None
        name = region_name(call.function)
        site = self.sites.site_of_function(tracker.site, name)
        if self.by_shapes:
            site = self.sites.seen(site, call.function, call.args, call.kwargs)
        if not site.is_region:
            site.is_region = True
            infos = tracker.names.infos
            infos[site.name] = replace(
                infos[site.name], compiled=True, implementation="compiled"
            )
        tracker.open_entry(site)
        if tracker.owns_nodes:
            tracker.own_from(site, site.low)
        return site

    def end_region(self, tracker: Tracker, site: Site, call: CompiledCall) -> None:
        """The function that `begin_region` gave a site for is over."""
        end_ns = perf_counter_ns()
        if not call.has_returned:
            tracker.leave_failed(site, end_ns)
        elif tracker.returns_to(site, end_ns):
            tracker.close_call(site, end_ns)

    # Backward

    def pass_begins(self, started: BackwardPass) -> None:
        """A backward pass is about to begin. Our mode is handling the call that started
        the pass, so it is off the stack until that call ends: push it again, to see the
        functions that are called inside of the pass."""
        mode = self.mode_on_stack.mode
        if mode is not None and mode not in function_modes():
            started.resumed = mode  # first: an interrupt may come in between
            push_function_mode(mode)

    def pass_is_over(self, ended: BackwardPass, is_last: bool) -> None:
        """`ended` will not be heard of again.

        is_last: whether no other pass is running.
        """
        if ended.resumed is not None:
            remove_function_mode(ended.resumed)

    def node_pre(self, tracker: Tracker, name: str, gradients: Any) -> None:
        """A node that has a hook of its own is about to run."""
        if not tracker.passes:  # an exception may have kept another node from ending
            tracker.abort_down_to(tracker.outside, tracker.last_stamp_ns())
        elif tracker.backward is not None:
            tracker.backward.reach_node(tracker, tracker.passes[-1])
        tracker.open_entry(self.sites.site_of_node(tracker.site, name))

    def node_post(self, tracker: Tracker, name: str) -> None:
        """A node that has a hook of its own has run."""
        if tracker.site.function == name:
            tracker.close_entry(tracker.site)


def is_inside_region(site: Site) -> bool:
    """Whether what is called from `site` is a part of a compiled region."""
    around = site.living_module()
    return site.is_region or (around is not None and is_compiled_module(around))


def _is_recomputing(tracker: Tracker) -> bool:
    """Whether functions that are called in a backward pass recompute a forward (of
    checkpointed code, which runs with gradients enabled). If not, they are parts of the
    backward of a custom Function, and belong to that."""
    running = tracker.passes[-1] if tracker.passes else None
    if running is None or running.makes_graph:
        return False
    return torch.is_grad_enabled()
