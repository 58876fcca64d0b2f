"""Calls the callbacks of hooks on functions. Nothing is measured here: a mode and the
replaced ``apply`` notify of functions (see mode.py)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Final

import torch

from torchprof_hooks.instruments.functions.call import (
    FunctionCall,
    FunctionCallbacks,
    is_notifying,
    notify,
)
from torchprof_hooks.instruments.functions.mode import ModeOnStack, applications
from torchprof_hooks.instruments.functions.names import function_name
from torchprof_hooks.instruments.functions.passes import HIDDEN, FollowedPasses
from torchprof_hooks.kernel.attachments import attachments
from torchprof_hooks.kernel.graph import nodes_behind, nodes_within
from torchprof_hooks.kernel.module_names import ModuleNames
from torchprof_hooks.kernel.passes import engine_patch
from torchprof_hooks.kernel.torch_names.autograd import next_sequence_number
from torchprof_hooks.kernel.torch_names.compiler import (
    is_compiled_module,
    is_tracing,
)
from torchprof_hooks.kernel.torch_names.functions import Run, shapes_of
from torchprof_hooks.kernel.torch_names.modules import modules_on_stack
from torchprof_hooks.kernel.torch_names.tensors import tensors_in

_keys: Final = count()


class FollowedFunctions:
    """Calls the callbacks of a hook for all functions of the running thread, or for one
    function.

    One `FunctionCall` describes each call. The autograd nodes that the call made refer
    to it until backward; it lives as long as they do, and keeps nothing alive itself.

    wants: whether a function is followed.
    is_replaced: whether a function has a hook of its own that replaces this one.
    names_nodes: whether nodes without a known function are functions of their own.
    in_any_thread: whether it follows all threads.
    """

    def __init__(
        self,
        hook: FunctionCallbacks,
        wants: Callable[[Any], bool] = lambda _: True,
        is_replaced: Callable[[Any], bool] = lambda _: False,
        *,
        names_nodes: bool = False,
        in_any_thread: bool = False,
    ) -> None:
        self._hook = hook
        self._wants, self._is_replaced = wants, is_replaced
        self._key = "torchprof_hooks call", next(_keys)
        self._names = ModuleNames()
        self._times_closed = 0
        self._mode = ModeOnStack(self)
        self._passes = FollowedPasses(
            *(hook, self._key, self._mode.resume),
            names_nodes=names_nodes,
            in_any_thread=in_any_thread,
        )
        self._others = hook._attachments()

    def open(
        self, follows_functions: bool = True, follows_applications: bool = True
    ) -> None:
        """Follow functions from now on, and backward passes."""
        for attachment in self._others:
            attachments.attach(attachment, self)
        if follows_applications:
            attachments.attach(applications, self)
        attachments.attach(engine_patch, self._passes)
        if follows_functions:
            attachments.attach(self._mode, self)

    def close(self, by_exception: bool = False) -> None:
        """Follow nothing any more, not even the ends of open calls."""
        self._times_closed += 1
        for attachment in (self._mode, applications, *self._others):
            attachments.detach(attachment, self)
        attachments.detach(engine_patch, self._passes)
        self._passes.drop()
        self._hook._over(None)

    def works_here(self) -> bool:
        """Whether it follows the running thread, or a pass that this thread works
        for."""
        return self._passes.works_here()

    def called(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call a function that a mode was given."""
        name = self._name_of(function)
        if name is None:
            return function(*args, **kwargs)
        return self._call(name, function, function, args, kwargs)

    def follows(self, cls: Any) -> bool:
        """Whether an application of this custom Function is followed."""
        return self._name_of(cls) is not None

    def applied(self, cls: Any, run: Run, *args: Any, **kwargs: Any) -> Any:
        """Call `run`, which applies `cls`."""
        return self._call(cls.__name__, cls, run, args, kwargs)

    def _name_of(self, function: Any) -> str | None:
        """The name of a function that is called; None if it is not followed. In a
        backward pass, it is if it recomputes a forward (of checkpointed code, which
        runs with gradients enabled), and not as a part of a custom Function's backward.
        """
        if is_notifying(self._hook):
            return None
        name = function_name(function)
        if name is None or not self._wants(function) or is_tracing():
            return None
        passes = self._passes.passes
        if passes and (passes[-1].makes_graph or not torch.is_grad_enabled()):
            return None
        return name

    def _call(
        self,
        name: str,
        function: Any,
        run: Callable[..., Any],
        args: Any,
        kwargs: dict[str, Any],
    ) -> Any:
        modules = modules_on_stack()
        if any(map(is_compiled_module, modules)):
            return run(*args, **kwargs)
        if self._is_replaced(function):
            low = next_sequence_number()
            outputs = run(*args, **kwargs)
            self._tie(HIDDEN, (outputs, args, kwargs), low)
            return outputs
        call = self._described(name, modules, args, kwargs)
        hook, times_closed = self._hook, self._times_closed
        failed = True
        try:
            notify(hook, hook.forward_preprocess, call, call.in_data)
            low = next_sequence_number()
            hook._begins(call)
            outputs = run(*args, **kwargs)
            failed = False
        finally:
            hook._over(call, failed)
        if times_closed == self._times_closed:  # else the hook was taken off meanwhile
            self._tie(call, (outputs, args, kwargs), low)
            notify(hook, hook.forward_postprocess, call, call.in_data)
        return outputs

    def _described(
        self, name: str, modules: list[torch.nn.Module], args: Any, kwargs: Any
    ) -> FunctionCall:
        path, values = "", (*args, *kwargs.values())
        if modules:
            names, caller = self._names, modules[-1]
            if names.get(caller) is None:
                names.add_root(modules[0])
            path = names.get(caller) or names.add_root(caller)
        tensors = tensors_in(values)
        return FunctionCall(name, path, tensors, shapes_of(tensors))

    def _tie(self, call: FunctionCall, outputs: object, low: int) -> None:
        """Have the nodes that `call` made, from number `low` on, remember it."""
        high = next_sequence_number()
        if high == low:
            return
        nodes = nodes_within(nodes_behind(outputs), low, high)
        if call is not HIDDEN:
            call.node_names = tuple(made.name() for made in nodes)
        for made in nodes:
            made.metadata.setdefault(self._key, call)
