"""Follows one thread through the functions that it calls, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter_ns
from typing import Any, Final

import torch

from torchprof_hooks.capture.attach.attachments import attachments
from torchprof_hooks.capture.attach.function_mode import ModeOnStack
from torchprof_hooks.capture.backward.backward_pass import BackwardPass, PassRequest
from torchprof_hooks.capture.backward.heard import HeardPasses
from torchprof_hooks.capture.backward.planned import PlannedPasses
from torchprof_hooks.capture.core.span_log import FOLD_AT
from torchprof_hooks.capture.function_names import (
    function_name,
    lives_as_long_as_torch,
    region_name,
)
from torchprof_hooks.capture.function_sites import FunctionSites
from torchprof_hooks.capture.module_names import ModuleNames
from torchprof_hooks.capture.site import Site
from torchprof_hooks.capture.torch_names.autograd import (
    next_sequence_number,
    sequence_number,
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
)
from torchprof_hooks.capture.tracker import STOPS_RECOMPUTATION

#: Intervals outside of any module call at which a record is made of them.
LOOSE_AT: Final = 256


class FunctionTracker(FunctionSites):
    """Measures functions as well as what its parent does.

    A function call is a site like a module call, inside of that of its caller. The
    nodes that a function makes are its own; a node that no function is known for is a
    function of its own, called by the node's name.

    follows_modules, follows_functions: what is to be shown to this tracker.
    by_shapes, counts_flops: see `FunctionSites`.
    wants: which functions are followed, in forward and in backward; by default all.
    """

    def __init__(
        self,
        names: ModuleNames | None = None,
        backward: HeardPasses | PlannedPasses | None = None,
        *,
        follows_modules: bool = True,
        follows_functions: bool = True,
        by_shapes: bool = False,
        counts_flops: bool = False,
        wants: Callable[[Any], bool] | None = None,
    ) -> None:
        super().__init__(names, backward, by_shapes, counts_flops)
        self.follows_modules = follows_modules
        self.follows_functions = follows_functions
        self.mode_on_stack = ModeOnStack(self)
        #: Name of the custom Function whose transformed form is running: torch.func
        #: applies the Function itself inside of that.
        self.transformed: str | None = None
        #: Whether a function has a hook of its own in place of the one served here.
        self.is_replaced_function: Callable[[Any], bool] = lambda function: False
        #: Called when a function turns up that is not known at its place yet.
        self.at_unknown: Callable[[], object] = lambda: None
        self._wants = wants
        self.name_nodes(follows_functions)

    # Forward

    def call(
        self,
        site: Site,
        function: Any,
        args: Any,
        kwargs: dict[str, Any],
        node: Any = None,
    ) -> Any:
        """Call `function` at a site from `find_function`; measure it.

        node: an autograd node of the call that has been made before.
        """
        if self.by_shapes and not site.is_hidden:
            site = self.shaped(site, function, args, kwargs)
        try:
            site.low = next_sequence_number() if node is None else sequence_number(node)
            site.start_ns = perf_counter_ns()
            self.site = site
            outputs = function(*args, **kwargs)
            self.function_returned(site, perf_counter_ns(), outputs)
        except BaseException as error:
            self.abort_function(site, error)
            raise
        return outputs

    def function_returned(self, site: Site, end_ns: int, outputs: object) -> None:
        """Close the call at `site`."""
        if self.site is not site and not self.returns_to(site, end_ns):
            return  # measuring was stopped in the middle of it
        self.site = site.caller
        high = next_sequence_number()
        if high != site.low:
            self.own((site.code, site.low, high))
        if site.is_entry:
            self._end_function_entry(site, end_ns, outputs)
        else:
            self.book((site.code, site.start_ns, end_ns))
        if len(self._entries) > FOLD_AT:
            self.log.fold()

    def find_function(self, function: Any) -> Site | None:
        """The site of a call of `function` from the current site, which does not know
        it yet; None if the call is not to be followed."""
        if self.site.phase == "backward" and not self.passes and self._wants is None:
            self.drop_dead_calls()  # an interrupt kept us from being told of its end
        caller = self.site
        if caller.phase == "backward" and not self._is_recomputing():
            return None
        self.at_unknown()
        if self._is_inside_region() or is_tracing():
            return None
        name = function_name(function)
        is_wanted = name is not None and (self._wants is None or self._wants(function))
        site = None
        if is_wanted and name:
            site = self.site_of_function(name, function=function)
        if site is not None and self.is_replaced_function(function):
            site = self.hidden(site)
        if caller.phase != "backward" and lives_as_long_as_torch(function):
            caller.functions[function] = site
        return site

    def forget_functions(self) -> None:
        """Ask anew what is to be followed."""
        for site in self.sites:
            site.functions.clear()

    def leave_function(self, function: Any) -> None:
        """`function` is not to be followed any more, nor are its open calls."""
        self.forget_functions()

    def open_mode(self, user: object) -> None:
        """Be shown the torch functions that this thread calls, for as long as `user`
        lives, or until `close_mode`."""
        attachments.attach(self.mode_on_stack, user)

    def close_mode(self, user: object) -> None:
        """Undo `open_mode`."""
        attachments.detach(self.mode_on_stack, user)

    def name_nodes(self, does: bool) -> None:
        """Whether nodes that no function is known for are functions of their own."""
        self.names_nodes = does and self._wants is None

    def looks_away_from(self, module: torch.nn.Module) -> bool:
        """Also from modules inside of a compiled function (see the parent class)."""
        return self.site.is_region or super().looks_away_from(module)

    def _is_inside_region(self) -> bool:
        around = self.site.living_module()
        return self.site.is_region or (
            around is not None and is_compiled_module(around)
        )

    def _is_recomputing(self) -> bool:
        """Whether functions called from within a backward pass are those of a forward
        that is done again (checkpointed code does so with gradients enabled), rather
        than steps of the backward of a custom Function, which belong to that."""
        running = self.passes[-1] if self.passes else None
        if running is None or running.makes_graph:
            return False
        return torch.is_grad_enabled()

    # Calls that do not end by returning to `call`, or not in order

    def abort_function(self, site: Site, error: BaseException) -> None:
        """Close the call at `site`, which an exception is leaving."""
        now_ns = perf_counter_ns()
        aborted_calls = self.aborted_calls
        if self.returns_to(site, now_ns):
            self.abort_down_to(site.caller, now_ns)
        if type(error).__name__ == STOPS_RECOMPUTATION:
            self.aborted_calls = aborted_calls

    # Functions called outside of any module: too many for a record each

    def _end_function_entry(self, site: Site, end_ns: int, outputs: object) -> None:
        if site.caller is not self.outside:
            self.end_entry(site, end_ns, outputs)
            return
        self.book((site.code, site.start_ns, end_ns))
        self.entered_ns += end_ns - site.start_ns
        if self.interval_count > LOOSE_AT:
            self.keep_loose()

    # Compiled functions

    def begin_region(self, call: CompiledCall) -> Site | None:
        """A function made by torch.compile begins: one function, whatever it does
        inside. None if it is inside of another one."""
        if self.site.is_region or is_tracing() or self._wants is not None:
            return None
        site = self.site_of_function(region_name(call.function))
        if self.by_shapes:
            site = self.shaped(site, None, call.args, call.kwargs)
        if not site.is_region:
            site.is_region = True
            self.names.infos[site.name] = replace(
                self.names.infos[site.name], compiled=True, implementation="compiled"
            )
        site.low = next_sequence_number()
        site.start_ns = perf_counter_ns()
        self.site = site
        return site

    def end_region(self, site: Site, call: CompiledCall) -> None:
        """The function that `begin_region` gave a site for is over."""
        end_ns = perf_counter_ns()
        if call.has_returned:
            self.function_returned(site, end_ns, call.outputs)
        elif self.returns_to(site, end_ns):
            self.abort_down_to(site.caller, end_ns)

    # Backward

    def begin_pass(self, request: PassRequest) -> None:
        """A backward pass is about to begin."""
        super().begin_pass(request)
        if self.site.phase == "data":
            return
        # The call that started it is being handled by the mode, which until its end is
        # off the stack; code that runs inside the pass is to be seen all the same.
        mode = self.mode_on_stack.mode
        if mode is not None and mode not in function_modes():
            self.passes[-1].resumed = mode  # first: an interrupt may come in between
            push_function_mode(mode)

    def pass_is_over(self, ended: BackwardPass) -> None:
        """`ended` will not be heard of again."""
        if ended.resumed is not None:
            remove_function_mode(ended.resumed)

    def node_pre(self, name: str, gradients: Any) -> None:
        """A node that has a hook of its own is about to run."""
        if not self.passes:  # an exception may have kept another one from ending
            self.abort_down_to(self.outside, self._last_stamp())
        else:
            self.backward.engine_ends(self.passes[-1])
        self.open_entry(self.site_of_node(self.site, name))

    def node_post(self, name: str) -> None:
        """A node that has a hook of its own has run."""
        if self.site.function == name:
            self.close_entry(self.site)
