"""Backward passes, for the callbacks of hooks on functions: while a pass runs, each of
its nodes has a hook."""

from __future__ import annotations

import threading
import weakref
from _thread import get_ident
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from torchprof_hooks.instruments.functions.call import (
    FunctionCall,
    FunctionCallbacks,
    InData,
    RunningBackward,
)
from torchprof_hooks.instruments.functions.mode import FunctionMode
from torchprof_hooks.kernel.graph import reachable_nodes
from torchprof_hooks.kernel.passes import PassRequest
from torchprof_hooks.kernel.torch_names.autograd import (
    at_end_of_nodes,
    current_autograd_node,
    current_graph_task,
)
from torchprof_hooks.kernel.torch_names.functions import remove_function_mode

#: What nodes refer to that a function has made whose own hook replaces the one here.
HIDDEN: Final = FunctionCall("")


class _Pass:
    """A backward pass that runs.

    makes_graph: ``create_graph``.
    task: the engine's number for it. node: the number of the node that runs.
    resumed: the mode that is back on torch's stack for as long as the pass runs.
    handles: take the hooks off the nodes.
    """

    def __init__(self, makes_graph: bool, resumed: FunctionMode | None) -> None:
        self.makes_graph = makes_graph
        self.task = self.node = -1
        self.open: RunningBackward | None = None
        self.is_over = False
        self.resumed = resumed
        self.handles: list[Any] = []

    def end(self) -> None:
        """Leave nothing of it."""
        self.is_over = True
        for handle in self.handles:
            handle.remove()
        if self.resumed is not None:
            remove_function_mode(self.resumed)


#: By hook and pass: where a function was opened last. A hook may be on several
#: functions: when one of them begins, another one ends.
_opened: Final[weakref.WeakValueDictionary[tuple[int, int], _Pass]] = (
    weakref.WeakValueDictionary()
)


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.passes: list[_Pass] = []


class FollowedPasses:
    """Calls the backward callbacks of a hook in the passes of a thread, or of all.

    key: under which nodes refer to the `FunctionCall` that made them.
    names_nodes: whether nodes without one are functions of their own.
    resume: puts the mode that shows functions back on torch's stack, if it is off.
    """

    def __init__(
        self,
        hook: FunctionCallbacks,
        key: object,
        resume: Callable[[], FunctionMode | None],
        *,
        names_nodes: bool,
        in_any_thread: bool,
    ) -> None:
        self._hook, self._key, self._resume = hook, key, resume
        self._names_nodes = names_nodes
        self._thread = None if in_any_thread else get_ident()
        self._here = _OfThread()
        self._tasks: set[int] = set()  # of running passes

    @property
    def passes(self) -> list[_Pass]:
        """The passes that this thread has started, the innermost last."""
        return self._here.passes

    def works_here(self) -> bool:
        """Whether it follows the running thread, or a pass that this thread works
        for."""
        is_here = self._thread is None or self._thread == get_ident()
        return is_here or current_graph_task() in self._tasks

    def drop(self) -> None:
        """Leave nothing of the passes of this thread."""
        while self.passes:
            self.passes.pop().end()

    def begin_pass(self, request: PassRequest) -> None:
        """A pass is about to begin: put a hook on each node that is to run."""
        running = _Pass(request.makes_graph, self._resume())
        self.passes.append(running)
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
        self._move(running, None if call is HIDDEN else call, gradients)

    def _move(
        self,
        running: _Pass,
        call: FunctionCall | None,
        gradients: InData,
        failed: bool = False,
    ) -> None:
        """From now on, nodes of this function run; None: of none that is followed."""
        left = running.open
        if running.is_over or (left is not None and left.function is call):
            return
        running.open = None
        if left is not None:
            left.end(failed)
        if call is None:
            return
        key = id(self._hook), running.task
        other, _opened[key] = _opened.get(key), running
        if other is not None and other.open and other.node != running.node:
            left, other.open = other.open, None
            left.end()
        running.open = RunningBackward(self._hook, call, gradients)
