"""Calls a user's hook at every function call."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from torchprof_hooks.capture.backward.backward_pass import BackwardPass
from torchprof_hooks.capture.backward.graph import nodes_behind, nodes_within
from torchprof_hooks.capture.backward.node_hooks import HookedPasses
from torchprof_hooks.capture.functions.function_call import FunctionCall
from torchprof_hooks.capture.functions.function_calls import FunctionCalls
from torchprof_hooks.capture.record.function_names import function_name
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.torch_names.autograd import (
    current_autograd_node,
    next_sequence_number,
)
from torchprof_hooks.capture.torch_names.compiler import CompiledCall
from torchprof_hooks.capture.torch_names.functions import (
    referred_tensor,
    shapes_of,
)
from torchprof_hooks.capture.torch_names.inputs import tensors_in
from torchprof_hooks.capture.torch_names.modules import (
    modules_on_stack,
)

if TYPE_CHECKING:
    from torchprof_hooks.capture.tracking.tracker import Tracker

InData = tuple[torch.Tensor | None, ...]


class FunctionCallbacks(Protocol):
    """The part of `FunctionHook` that is called for each function call."""

    name: str

    def forward_preprocess(self, function: FunctionCall, in_data: InData) -> None: ...
    def forward_postprocess(self, function: FunctionCall, in_data: InData) -> None: ...
    def backward_preprocess(
        self, function: FunctionCall, in_data: InData, out_grad: InData
    ) -> None: ...
    def backward_postprocess(
        self, function: FunctionCall, in_data: InData, out_grad: InData
    ) -> None: ...


class _OpenBackward:
    """A function whose backward runs. It does not keep gradients alive: else torch
    would copy a gradient that it otherwise gives to a leaf as it is."""

    def __init__(self, function: FunctionCall, out_grad: InData) -> None:
        self.function = function
        self._gradients = [None if g is None else weakref.ref(g) for g in out_grad]

    @property
    def out_grad(self) -> InData:
        """The gradients that are still alive."""
        return tuple(None if g is None else referred_tensor(g) for g in self._gradients)


class _Gradients:
    """Keeps the gradients for the node that is about to run, while hooks are told."""

    def __init__(self) -> None:
        self.gradients: InData = ()

    def at_node(self, told: Callable[[InData], None], gradients: InData) -> None:
        """Call `told`; meanwhile, `gradients` has the gradients."""
        self.gradients = gradients
        try:
            told(gradients)
        finally:
            self.gradients = ()


class CalledBackFunctions(FunctionCalls):
    """Calls the callbacks of a hook.

    One `FunctionCall` describes each call. The autograd nodes that the call made refer
    to it until backward; it lives as long as they do, and keeps nothing alive itself.
    """

    def __init__(self, hook: FunctionCallbacks, **options: Any) -> None:
        super().__init__(**options)
        self._hook = hook
        self._given = _Gradients()
        self._is_telling = False
        self._calls: dict[int, FunctionCall] = {}  # open forwards, by code of the site
        self._open: dict[int, _OpenBackward] = {}  # open backwards, by that as well

    def passes(self) -> HookedPasses:
        """What follows passes, with hooks on nodes that get the gradients, and can end
        the pass by an exception."""
        return HookedPasses(callbacks=self, gives_gradients=self._given.at_node)

    # Forward

    def call(
        self,
        tracker: Tracker,
        site: Site,
        function: Any,
        args: Any,
        kwargs: dict[str, Any],
    ) -> Any:
        """Call `function`, and the hook before and after it (see the parent class)."""
        if self._is_telling:  # the hook itself calls a function
            return function(*args, **kwargs)
        if site.is_hidden:
            return super().call(tracker, site, function, args, kwargs)
        call = self._describe(tracker, site, args, kwargs)
        self._calls[site.code] = call
        try:
            self._tell(self._hook.forward_preprocess, call, call.in_data)
            low = next_sequence_number()
            outputs = super().call(tracker, site, function, args, kwargs)
        except BaseException:
            self._calls.pop(site.code, None)
            raise
        self._returned(site, call, (outputs, args, kwargs), low)
        return outputs

    def _returned(
        self, site: Site, call: FunctionCall, tensors: object, low: int
    ) -> None:
        if self._calls.pop(site.code, None) is call:  # else the hook was taken off
            self._tie(call, tensors, low)
            self._tell(self._hook.forward_postprocess, call, call.in_data)

    def begin_region(self, tracker: Tracker, call: CompiledCall) -> Site | None:
        """A function made by torch.compile begins (see the parent class)."""
        site = None if self._is_telling else super().begin_region(tracker, call)
        if site is not None:
            described = self._describe(tracker, site, call.args, call.kwargs)
            self._calls[site.code] = described
            self._tell(self._hook.forward_preprocess, described, described.in_data)
        return site

    def end_region(self, tracker: Tracker, site: Site, call: CompiledCall) -> None:
        """The function that `begin_region` gave a site for is over."""
        low = site.low
        super().end_region(tracker, site, call)
        described = self._calls.get(site.code)
        if described is not None and call.has_returned:
            tensors = call.outputs, call.args, call.kwargs
            self._returned(site, described, tensors, low)

    def leave(self, tracker: Tracker, function: Any) -> None:
        """`function` is not to be followed any more, nor are its open calls."""
        super().leave(tracker, function)
        name = function_name(function)
        for open_calls in (self._calls, self._open):
            for code in [c for c in open_calls if tracker.sites[c].function == name]:
                del open_calls[code]

    def drop_open_calls(self) -> None:
        """Nobody is to be told any more of calls that are open."""
        self._calls.clear()
        self._open.clear()

    def _describe(
        self, tracker: Tracker, site: Site, args: Any, kwargs: dict[str, Any]
    ) -> FunctionCall:
        values = (*args, *kwargs.values())
        return FunctionCall(
            site.function or "",
            _module_path(tracker, site),
            tensors_in(values),
            tuple(map(tuple, shapes_of(values))),
        )

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        if self._is_telling:
            return  # the hook itself calls a function
        self._is_telling = True
        try:
            callback(*args)
        finally:
            self._is_telling = False

    def _tie(self, call: FunctionCall, outputs: object, low: int) -> None:
        """Have the nodes that `call` made, from number `low` on, remember it."""
        high = next_sequence_number()
        if high == low:
            return
        nodes = nodes_within(nodes_behind(outputs), low, high)
        call.node_names = tuple(made.name() for made in nodes)
        for made in nodes:
            made.metadata.setdefault((_METADATA_KEY, id(self)), call)

    # Backward

    def moved(self, closed: list[Site], opened: list[Site], failed: bool) -> None:
        """A pass has moved to other owners."""
        for site in closed:
            if site.function is not None and not failed:
                self._backward_ends(site)
        for site in opened:
            if site.function is not None and not site.is_hidden:
                self._backward_begins(site)

    def _backward_begins(self, site: Site) -> None:
        node = current_autograd_node()
        call = node.metadata.get((_METADATA_KEY, id(self)))
        if call is None or call.name != site.function:
            name = site.function or ""
            call = FunctionCall(name, _name_around(site), node_names=(node.name(),))
        gradients = self._given.gradients
        self._open[site.code] = _OpenBackward(call, gradients)
        self._tell(self._hook.backward_preprocess, call, call.in_data, gradients)

    def _backward_ends(self, site: Site) -> None:
        ended = self._open.pop(site.code, None)
        if ended is not None:
            call = ended.function
            self._tell(
                self._hook.backward_postprocess, call, call.in_data, ended.out_grad
            )

    def pass_is_over(self, ended: BackwardPass, is_last: bool) -> None:
        """`ended` will not be heard of again."""
        super().pass_is_over(ended, is_last)
        if is_last:
            self._open.clear()

    # One node

    def node_pre(self, tracker: Tracker, name: str, gradients: Any) -> None:
        """A hooked node is about to run."""
        super().node_pre(tracker, name, gradients)
        self._given.at_node(lambda _: self._backward_begins(tracker.site), gradients)

    def node_post(self, tracker: Tracker, name: str) -> None:
        """A hooked node has run."""
        site = tracker.site
        super().node_post(tracker, name)
        self._backward_ends(site)


def _module_path(tracker: Tracker, site: Site) -> str:
    if tracker.follows_modules:
        return _name_around(site)
    modules = modules_on_stack()
    if not modules:
        return ""
    caller = modules[-1]
    if tracker.names.get(caller) is None:
        tracker.names.add_root(modules[0])
    return tracker.names.get(caller) or tracker.names.add_root(caller)


def _name_around(site: Site) -> str:
    module_site = site.enclosing
    return "" if module_site.module is None else module_site.name


_METADATA_KEY: Final = "torchprof_hooks call"
