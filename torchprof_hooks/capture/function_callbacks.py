"""A tracker that calls a user's hook at every function call."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final, Protocol

import torch

from torchprof_hooks.capture.backward.ownership import nodes_behind
from torchprof_hooks.capture.backward.plan import nodes_within
from torchprof_hooks.capture.backward.planned import PlannedPasses
from torchprof_hooks.capture.function_call import FunctionCall
from torchprof_hooks.capture.function_names import function_name
from torchprof_hooks.capture.function_tracker import FunctionTracker
from torchprof_hooks.capture.site import Site
from torchprof_hooks.capture.torch_names.autograd import (
    current_autograd_node,
    next_sequence_number,
    sequence_number,
)
from torchprof_hooks.capture.torch_names.compiler import CompiledCall
from torchprof_hooks.capture.torch_names.functions import (
    shapes_of,
    tensors_in,
)
from torchprof_hooks.capture.torch_names.modules import (
    modules_on_stack,
)

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
    """A function whose backward runs. It does not keep the gradients: torch would copy
    what it otherwise hands over to a leaf."""

    def __init__(self, function: FunctionCall, out_grad: InData) -> None:
        self.function = function
        self._gradients = [None if g is None else weakref.ref(g) for g in out_grad]

    @property
    def out_grad(self) -> InData:
        """The gradients that are still alive."""
        return tuple(None if g is None else g() for g in self._gradients)


class _Gradients:
    """Those that the node is given that is about to run."""

    def __init__(self) -> None:
        self.gradients: InData = ()

    def at_node(self, told: Callable[[InData], None], gradients: InData) -> None:
        """Do what is to be done at a node."""
        self.gradients = gradients
        try:
            told(gradients)
        finally:
            self.gradients = ()


class FunctionCallbackTracker(FunctionTracker):
    """Calls the callbacks of a hook.

    Each call is described by one `FunctionCall`. The autograd nodes that the call made
    hold it until backward; it lives as long as they do, and holds nothing itself.
    """

    calls_back = True

    def __init__(self, hook: FunctionCallbacks, **options: Any) -> None:
        # Hooks on nodes are given the gradients, and what they raise ends the pass.
        given = _Gradients()
        passes = PlannedPasses(gives_gradients=given.at_node)
        super().__init__(backward=passes, **options)
        self.tells_moves = True
        self._hook = hook
        self._given = given
        self._is_telling = False
        self._calls: dict[int, FunctionCall] = {}  # open ones, by code of the site
        self._open: dict[int, _OpenBackward] = {}  # the same

    # Forward

    def call(
        self,
        site: Site,
        function: Any,
        args: Any,
        kwargs: dict[str, Any],
        node: Any = None,
    ) -> Any:
        """Call `function`, and the hook before and after it (see the parent class)."""
        if self._is_telling:  # the hook itself calls a function
            return function(*args, **kwargs)
        if site.is_hidden:
            return super().call(site, function, args, kwargs, node)
        call = self._describe(site, args, kwargs)
        self._calls[site.code] = call
        try:
            self._tell(self._hook.forward_preprocess, call, call.in_data)
            low = next_sequence_number() if node is None else sequence_number(node)
            outputs = super().call(site, function, args, kwargs, node)
        except BaseException:
            self._calls.pop(site.code, None)
            raise
        self._returned(site, call, (outputs, args, kwargs), low, node)
        return outputs

    def _returned(
        self,
        site: Site,
        call: FunctionCall,
        tensors: object,
        low: int,
        node: Any = None,
    ) -> None:
        if self._calls.pop(site.code, None) is call:  # else: taken off meanwhile
            self._tie(call, tensors, low, node)
            self._tell(self._hook.forward_postprocess, call, call.in_data)

    def begin_region(self, call: CompiledCall) -> Site | None:
        """A function made by torch.compile begins (see the parent class)."""
        site = None if self._is_telling else super().begin_region(call)
        if site is not None:
            described = self._describe(site, call.args, call.kwargs)
            self._calls[site.code] = described
            self._tell(self._hook.forward_preprocess, described, described.in_data)
        return site

    def end_region(self, site: Site, call: CompiledCall) -> None:
        """The function that `begin_region` gave a site for is over."""
        low = site.low
        super().end_region(site, call)
        described = self._calls.get(site.code)
        if described is not None and call.has_returned:
            tensors = call.outputs, call.args, call.kwargs
            self._returned(site, described, tensors, low)

    def leave_function(self, function: Any) -> None:
        """`function` is not to be followed any more, nor are its open calls."""
        super().leave_function(function)
        name = function_name(function)
        for open_calls in (self._calls, self._open):
            for code in [c for c in open_calls if self.sites[c].function == name]:
                del open_calls[code]

    def abort_all(self, by_exception: bool) -> None:
        """Close whatever is open; nobody is told (see the parent class)."""
        super().abort_all(by_exception)
        self._calls.clear()
        self._open.clear()

    def _describe(self, site: Site, args: Any, kwargs: dict[str, Any]) -> FunctionCall:
        values = (*args, *kwargs.values())
        return FunctionCall(
            site.function or "",
            self._module_path(site),
            tensors_in(values),
            tuple(map(tuple, shapes_of(values))),
        )

    def _module_path(self, site: Site) -> str:
        if self.follows_modules:
            return _name_around(site)
        modules = modules_on_stack()
        if not modules:
            return ""
        caller = modules[-1]
        if self.names.get(caller) is None:
            self.names.add_root(modules[0])
        return self.names.get(caller) or self.names.add_root(caller)

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        if self._is_telling:
            return  # of what the hook itself does
        self._is_telling = True
        try:
            callback(*args)
        finally:
            self._is_telling = False

    def _tie(self, call: FunctionCall, outputs: object, low: int, node: Any) -> None:
        """Have the nodes that `call` made, from number `low` on, remember it.

        node: one of them, if it is not behind the outputs yet.
        """
        high = next_sequence_number()
        if high == low:
            return
        behind = nodes_behind(outputs)
        if node is not None:
            behind.append(node)
        nodes = nodes_within(behind, low, high)
        call.node_names = tuple(made.name() for made in nodes)
        for made in nodes:
            made.metadata.setdefault((_METADATA_KEY, id(self)), call)

    # Backward

    def moved(self, closed: list[Site], opened: list[Site]) -> None:
        """A pass has gone over to other owners (see the parent class)."""
        for site in closed:
            if site.function is not None and not self.passes[-1].failed:
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

    def end_pass(self, outputs: object, failed: bool) -> None:
        """The backward pass that began last is over."""
        try:
            super().end_pass(outputs, failed)
        finally:
            if not self.passes:
                self._open.clear()

    # One node

    def node_pre(self, name: str, gradients: Any) -> None:
        """A hooked node is about to run."""
        super().node_pre(name, gradients)
        self._given.at_node(lambda _: self._backward_begins(self.site), gradients)

    def node_post(self, name: str) -> None:
        """A hooked node has run."""
        site = self.site
        super().node_post(name)
        self._backward_ends(site)


def _name_around(site: Site) -> str:
    module_site = site.enclosing
    return "" if module_site.module is None else module_site.name


_METADATA_KEY: Final = "torchprof_hooks call"
