"""Tells trackers when a backward pass begins and ends.

We replace the function by which Python enters the engine, and do not look at outputs of
modules. So we find all nodes, whatever outputs look like (objects of the user's own, a
loss left behind as an attribute), and know when a pass begins and ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.attach.attachments import Layer, Patch
from torchprof_hooks.capture.backward.backward_pass import (
    NO_REQUEST,
    REQUEST_OF_GRAPH,
    PassRequest,
    gradient_reduction,
)
from torchprof_hooks.capture.core import carry_no_ended
from torchprof_hooks.capture.torch_names.autograd import (
    NO_SEQUENCE_NUMBER,
    engine_entry,
    node_of,
    sequence_number,
)
from torchprof_hooks.capture.torch_names.compiler import (
    is_compiled_autograd_on,
    is_tracing,
)
from torchprof_hooks.capture.torch_names.place import Function


class EnginePatch(Patch):
    """Where Python enters the autograd engine; its users are trackers, or have what a
    `Tracker` has for passes.

    torch has no hook for that. So while there are users, this replaces the function
    through which Python enters the engine by one that tells them and then does the
    same.
    """

    def __init__(self) -> None:
        super().__init__(engine_entry, self._make_entry)

    def _make_entry(self, run_backward: Function, layer: Layer) -> Function:
        def run_measured_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if (
                is_dynamo_compiling()
                or not layer.is_on
                or is_tracing()
                or is_compiled_autograd_on()
            ):
                return run_backward(outputs, *args, **kwargs)
            begun: list[tuple[Any, int]] = []
            results: Any = None
            failed = True
            try:
                for tracker in self.trackers_here():
                    begun.append((tracker, len(tracker.passes)))
                    passes = tracker.backward
                    with_roots = passes is not None and passes.needs_roots
                    request = _request(with_roots, outputs, *args)
                    tracker.begin_pass(request)
                results = run_backward(outputs, *args, **kwargs)
                failed = False
                return results
            finally:
                if begun:
                    _end(begun, results, failed)

        return run_measured_backward


def _end(begun: list[tuple[Any, int]], results: Any, failed: bool) -> None:
    """Tell each tracker that its pass is over, even if a hook of one raises."""
    tracker, passes_before = begun.pop()
    try:
        if len(tracker.passes) > passes_before:
            tracker.end_pass(results, failed)
    finally:
        if begun:
            _end(begun, results, failed)
        elif not passes_before:  # the outermost is over, for all trackers
            gradient_reduction.is_expected = False
            carry_no_ended()  # a hook may have stopped measuring in it


def _request(  # noqa: PLR0917
    with_roots: bool,
    outputs: Iterable[Any],
    gradients: Any = (),
    keeps_graph: Any = False,
    makes_graph: Any = False,
    inputs: Iterable[Any] = (),
    *_: Any,
) -> PassRequest:
    """What the engine's positional arguments ask for.

    with_roots: whether the nodes that it starts from are wanted.
    """
    if not with_roots:
        return REQUEST_OF_GRAPH if makes_graph else NO_REQUEST
    roots = [node for node in map(_node, outputs) if node is not None]
    numbers = [
        NO_SEQUENCE_NUMBER if node is None else sequence_number(node)
        for node in map(_node, inputs)
    ]
    # The gradient of the oldest input is only handed over: its node does not run, nor
    # do older ones. A leaf has no number, and may be behind any node.
    stop = min(numbers) if numbers and NO_SEQUENCE_NUMBER not in numbers else -1
    return PassRequest(roots, bool(keeps_graph), bool(makes_graph), stop)


def _node(edge: Any) -> Any:
    """The node of a tensor (None of a leaf) or of a ``GradientEdge``."""
    return node_of(edge) if isinstance(edge, torch.Tensor) else edge.node


#: The one there is.
engine_patch: Final = EnginePatch()
