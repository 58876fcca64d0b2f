"""Calls the callbacks of hooks on functions. Nothing is measured here: a mode and the
replaced ``apply`` show functions (see attach/function_mode.py), and when a backward
pass begins, each of its nodes gets a hook, until the pass is over."""

from __future__ import annotations

import threading
import weakref
from _thread import get_ident
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final, Protocol

import torch

from torchprof_hooks.capture.attach.attachments import Attachment, attachments
from torchprof_hooks.capture.attach.engine import engine_patch
from torchprof_hooks.capture.attach.function_mode import (
    FunctionMode,
    ModeOnStack,
    applications,
)
from torchprof_hooks.capture.backward.backward_pass import PassRequest
from torchprof_hooks.capture.backward.graph import (
    nodes_behind,
    nodes_within,
    reachable_nodes,
)
from torchprof_hooks.capture.functions.function_call import FunctionCall
from torchprof_hooks.capture.record.function_names import (
    function_name,
    transformed_name,
)
from torchprof_hooks.capture.record.module_names import ModuleNames
from torchprof_hooks.capture.torch_names.autograd import (
    at_end_of_nodes,
    current_autograd_node,
    current_graph_task,
    next_sequence_number,
)
from torchprof_hooks.capture.torch_names.compiler import (
    is_compiled_module,
    is_tracing,
)
from torchprof_hooks.capture.torch_names.custom_functions import Run
from torchprof_hooks.capture.torch_names.functions import (
    referred_tensor,
    remove_function_mode,
    shapes_of,
)
from torchprof_hooks.capture.torch_names.inputs import tensors_in
from torchprof_hooks.capture.torch_names.modules import modules_on_stack

InData = tuple[torch.Tensor | None, ...]


class Records(Protocol):
    """What is told of the begin and the end of each call itself."""

    def began(self, call: FunctionCall, phase: Any) -> None: ...
    def ended(self, call: FunctionCall, is_backward: bool, failed: bool) -> None: ...
    def drop_open_calls(self) -> None: ...


class FunctionCallbacks(Protocol):
    """The part of `FunctionHook` that is called for each function call."""

    name: str

    @property
    def _records(self) -> Records | None:
        """What measures calls besides; None: nothing does."""

    def forward_preprocess(self, function: FunctionCall, in_data: InData) -> None: ...
    def forward_postprocess(self, function: FunctionCall, in_data: InData) -> None: ...
    def backward_preprocess(
        self, function: FunctionCall, in_data: InData, out_grad: InData
    ) -> None: ...
    def backward_postprocess(
        self, function: FunctionCall, in_data: InData, out_grad: InData
    ) -> None: ...
    def _attachments(self) -> tuple[Attachment, ...]: ...


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


class _Pass:
    """A backward pass that runs.

    makes_graph: ``create_graph``. moves: then, from which number on the nodes that are
        made belong to the backward of which function.
    task: the engine's number for it. node: the number of the node that runs.
    resumed: the mode that is back on torch's stack for as long as the pass runs.
    handles: take the hooks off the nodes.
    """

    def __init__(self, makes_graph: bool) -> None:
        self.makes_graph = makes_graph
        self.moves: list[tuple[int, FunctionCall | None]] = []
        self.task = self.node = -1
        self.open: _OpenBackward | None = None
        self.is_over = False
        self.resumed: FunctionMode | None = None
        self.handles: list[Any] = []

    def end(self) -> None:
        """Leave nothing of it."""
        self.is_over = True
        for handle in self.handles:
            handle.remove()
        if self.resumed is not None:
            remove_function_mode(self.resumed)


class _State(threading.local):
    """passes: those that this thread has started, the innermost last.
    transformed: name of the custom Function whose transformed form is running:
        ``torch.func`` applies the Function itself inside of that.
    """

    def __init__(self) -> None:
        self.passes: list[_Pass] = []
        self.transformed: str | None = None


class _Telling(threading.local):
    """The hooks, by their ids, a callback of which this thread runs: they are not told
    of the functions that it calls."""

    def __init__(self) -> None:
        self.hooks: set[int] = set()


_telling: Final = _Telling()
_keys: Final = count()
#: By hook and pass: where a function was opened last. A hook may be on several
#: functions: when one of them begins, another one ends.
_opened: Final[weakref.WeakValueDictionary[tuple[int, int], _Pass]] = (
    weakref.WeakValueDictionary()
)
#: What nodes refer to that a function has made whose own hook replaces the one here.
_HIDDEN: Final = FunctionCall("")


def tell(hook: object, callback: Callable[..., None], *args: Any) -> None:
    """Call a callback of a hook, unless that has called a function itself."""
    if id(hook) in _telling.hooks:
        return
    _telling.hooks.add(id(hook))
    try:
        callback(*args)
    finally:
        _telling.hooks.discard(id(hook))


def begin_backward(
    hook: FunctionCallbacks, call: FunctionCall, gradients: InData
) -> _OpenBackward:
    """The first node of a function is about to run."""
    begun = _OpenBackward(call, gradients)
    tell(hook, hook.backward_preprocess, call, call.in_data, gradients)
    if hook._records is not None:
        hook._records.began(call, "backward")
    return begun


def end_backward(hook: FunctionCallbacks, left: _OpenBackward, failed: bool) -> None:
    """The last node of a function has run, or the pass has failed in it."""
    call = left.function
    if hook._records is not None:
        hook._records.ended(call, True, failed)
    if not failed:
        tell(hook, hook.backward_postprocess, call, call.in_data, left.out_grad)


class FollowedFunctions:
    """Calls the callbacks of a hook for all functions of the running thread, or for one
    function.

    One `FunctionCall` describes each call. The autograd nodes that the call made refer
    to it until backward; it lives as long as they do, and keeps nothing alive itself.

    wants: whether a function is followed.
    is_replaced: whether a function has a hook of its own that replaces this one.
    shown_by: what shows functions, besides backward passes.
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
        self._names_nodes = names_nodes
        self.thread = None if in_any_thread else get_ident()
        self._state = _State()
        self._key = "torchprof_hooks call", next(_keys)
        self._tasks: set[int] = set()  # of running passes
        self._names = ModuleNames()
        self._times_closed = 0
        self._mode = ModeOnStack(self)
        self._others = hook._attachments()

    def open(self, sees_functions: bool = True, sees_applications: bool = True) -> None:
        """Follow functions from now on, and backward passes."""
        for attachment in self._others:
            attachments.attach(attachment, self)
        if sees_applications:
            attachments.attach(applications, self)
        attachments.attach(engine_patch, self)
        if sees_functions:
            attachments.attach(self._mode, self)

    def close(self, by_exception: bool = False) -> None:
        """Follow nothing any more: nobody is told of calls that are open."""
        self._times_closed += 1
        for attachment in (self._mode, engine_patch, applications, *self._others):
            attachments.detach(attachment, self)
        while self.passes:
            self.passes.pop().end()
        if self._hook._records is not None:
            self._hook._records.drop_open_calls()

    def works_here(self) -> bool:
        """Whether it follows the running thread, or a pass that this thread works
        for."""
        is_here = self.thread is None or self.thread == get_ident()
        return is_here or current_graph_task() in self._tasks

    # Forward

    def shown(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call a function that a mode was given."""
        name = self._name_of(function)
        if name is None:
            return function(*args, **kwargs)
        return self._call(name, function, function, args, kwargs)

    def sees(self, cls: Any) -> bool:
        """Whether an application of this custom Function is followed."""
        is_inner = self._state.transformed == cls.__name__
        return not is_inner and self._name_of(cls) is not None

    def applied(self, cls: Any, run: Run, *args: Any, **kwargs: Any) -> Any:
        """Call `run`, which applies `cls`."""
        state = self._state
        around = state.transformed
        state.transformed = transformed_name(cls) or around
        try:
            return self._call(function_name(cls) or "", cls, run, args, kwargs)
        finally:
            state.transformed = around

    def _name_of(self, function: Any) -> str | None:
        """The name of a function that is called; None if it is not followed. In a
        backward pass, it is if it recomputes a forward (of checkpointed code, which
        runs with gradients enabled), and not as a part of a custom Function's backward.
        """
        if id(self._hook) in _telling.hooks:
            return None
        name = function_name(function)
        if name is None or not self._wants(function) or is_tracing():
            return None
        passes = self._state.passes
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
        is_told = not self._is_replaced(function)
        call = self._described(name, modules, args, kwargs) if is_told else _HIDDEN
        times_closed = self._times_closed
        if is_told:
            tell(self._hook, self._hook.forward_preprocess, call, call.in_data)
        low = next_sequence_number()
        outputs = self._run(call, run, args, kwargs)
        if times_closed == self._times_closed:  # else the hook was taken off meanwhile
            self._tie(call, (outputs, args, kwargs), low)
            if is_told:
                tell(self._hook, self._hook.forward_postprocess, call, call.in_data)
        return outputs

    def _run(
        self, call: FunctionCall, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        records = self._hook._records
        if records is None or call is _HIDDEN:
            return run(*args, **kwargs)
        is_again = current_graph_task() != -1
        failed = True
        records.began(call, "recompute" if is_again else "forward")
        try:
            outputs = run(*args, **kwargs)
            failed = False
            return outputs
        finally:
            records.ended(call, False, failed)

    def _described(
        self, name: str, modules: list[torch.nn.Module], args: Any, kwargs: Any
    ) -> FunctionCall:
        path, values = "", (*args, *kwargs.values())
        if modules:
            names, caller = self._names, modules[-1]
            if names.get(caller) is None:
                names.add_root(modules[0])
            path = names.get(caller) or names.add_root(caller)
        shapes = tuple(map(tuple, shapes_of(values)))
        return FunctionCall(name, path, tensors_in(values), shapes)

    def _tie(self, call: FunctionCall, outputs: object, low: int) -> None:
        """Have the nodes that `call` made, from number `low` on, remember it."""
        high = next_sequence_number()
        if high == low:
            return
        nodes = nodes_within(nodes_behind(outputs), low, high)
        if call is not _HIDDEN:
            call.node_names = tuple(made.name() for made in nodes)
        for made in nodes:
            made.metadata.setdefault(self._key, call)

    # Backward: what the engine's patch asks its users for

    @property
    def passes(self) -> list[_Pass]:
        """The passes that this thread has started, the innermost last."""
        return self._state.passes

    def begin_pass(self, request: PassRequest) -> None:
        """A pass is about to begin: put a hook on each node that is to run."""
        running = _Pass(request.makes_graph)
        self.passes.append(running)
        running.resumed = self._mode.resume()
        at_node = partial(self._on_node, running)
        nodes = reachable_nodes(request.roots()) or {}
        stop = request.stop()
        for number, node in nodes.items():
            if number > stop:
                running.handles.append(node.register_prehook(at_node))

    def end_pass(self, outputs: object, failed: bool) -> None:
        """The pass that began last is over."""
        ended = self.passes.pop()
        try:
            self._move(ended, None, (), failed)
            if not failed:
                self._tie_made(ended, outputs)
        finally:
            self._tasks.discard(ended.task)
            ended.end()

    def _on_node(self, running: _Pass, gradients: InData) -> None:
        """A node is about to run."""
        if running.is_over:
            return
        if running.task == -1:
            running.task = current_graph_task()
            self._tasks.add(running.task)
            at_end_of_nodes(partial(self._move, running, None, ()))
        node = current_autograd_node()
        running.node = node._sequence_nr()
        call = node.metadata.get(self._key)
        if call is None and self._names_nodes:
            call = FunctionCall(node.name(), node_names=(node.name(),))
        self._move(running, None if call is _HIDDEN else call, gradients)

    def _move(
        self,
        running: _Pass,
        call: FunctionCall | None,
        gradients: InData,
        failed: bool = False,
    ) -> None:
        """From now on, nodes of this function run; None: of none that is followed."""
        left, running.open = running.open, None
        if running.is_over or (left is not None and left.function is call):
            running.open = left
            return
        if running.makes_graph:
            running.moves.append((next_sequence_number(), call))
        if left is not None:
            end_backward(self._hook, left, failed)
        if call is not None:
            key = id(self._hook), running.task
            other, _opened[key] = _opened.get(key), running
            if other is not None and other.open and other.node != running.node:
                left, other.open = other.open, None
                end_backward(self._hook, left, failed=False)
            running.open = begin_backward(self._hook, call, gradients)

    def _tie_made(self, ended: _Pass, outputs: object) -> None:
        """Have the nodes that the pass made remember of whose backward they are."""
        if not ended.moves:
            return
        low, high = ended.moves[0][0], next_sequence_number()
        nodes = nodes_within(nodes_behind(outputs), low, high)
        for (first, call), (end, _) in zip(
            ended.moves, [*ended.moves[1:], (high, None)], strict=True
        ):
            made = [node for node in nodes if first <= node._sequence_nr() < end]
            if call is not None and made:
                names = tuple(node.name() for node in made)
                again = FunctionCall(call.name, call.module_path, node_names=names)
                for node in made:
                    node.metadata.setdefault(self._key, again)


# Hooks on one function, or on one autograd node


class FunctionSubscription:
    """A hook on one class of custom Functions, in all threads; or on one function of
    torch, in this thread."""

    def __init__(self, function: Any, name: str, hook: FunctionCallbacks) -> None:
        self.name, self.hook = name, hook
        is_class = isinstance(function, type)
        find = weakref.ref(function) if is_class else lambda: function
        self._follows = FollowedFunctions(
            hook, lambda called: called is find(), in_any_thread=is_class
        )
        (_classes if is_class else _of_thread.functions).setdefault(function, {})[
            name
        ] = self
        self._follows.open(sees_functions=not is_class, sees_applications=is_class)

    def close(self) -> None:
        """Disconnect the hook."""
        self._follows.close()


class NodeSubscription:
    """A hook on one autograd node. The node refers to it, and it does not refer to the
    node."""

    def __init__(self, node: Any, name: str, hook: FunctionCallbacks) -> None:
        self.name, self.hook = name, hook
        self._node_name: str = node.name()
        self._open: _OpenBackward | None = None
        self._handles = [
            node.register_prehook(self._before),
            node.register_hook(self._after),
        ]
        subscriptions_of_node(node)[name] = self

    def _before(self, gradients: InData) -> None:
        call = FunctionCall(self._node_name, node_names=(self._node_name,))
        self._open = begin_backward(self.hook, call, gradients)

    def _after(self, inputs: Any, outputs: Any) -> None:
        left, self._open = self._open, None
        if left is not None:
            end_backward(self.hook, left, failed=False)

    def close(self) -> None:
        """Disconnect the hook."""
        self._open = None
        for handle in self._handles:
            handle.remove()


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.functions: dict[Any, dict[str, FunctionSubscription]] = {}


_classes: weakref.WeakKeyDictionary[type, dict[str, FunctionSubscription]] = (
    weakref.WeakKeyDictionary()
)
_of_thread = _OfThread()
_METADATA_KEY: Final = "torchprof_hooks hooks"


def subscriptions_of_function(function: Any) -> dict[str, FunctionSubscription]:
    """The hooks on a class of custom Functions, or on a torch function in this thread,
    by name."""
    if isinstance(function, type):
        return _classes.get(function, {})
    return _of_thread.functions.get(function, {})


def subscriptions_of_node(node: Any) -> dict[str, NodeSubscription]:
    """The hooks on an autograd node, by name."""
    found: dict[str, NodeSubscription] = node.metadata.setdefault(_METADATA_KEY, {})
    return found


def forget_node(node: Any) -> None:
    """Clean up a node that has no hooks any more."""
    if not subscriptions_of_node(node):
        del node.metadata[_METADATA_KEY]
