"""The base class of hooks on functions, with Chainer's contract."""

from __future__ import annotations

from typing import Any

import torch

from torchprof_hooks.hooks.hook import Hook, on_functions
from torchprof_hooks.instruments.functions.call import FunctionCall
from torchprof_hooks.instruments.functions.callbacks import FollowedFunctions
from torchprof_hooks.instruments.functions.targets import subscriptions_of_function
from torchprof_hooks.kernel.attachments import Attachment

Tensors = tuple[torch.Tensor | None, ...]


class FunctionHook(Hook):
    """Callbacks around every call of a function, forward and backward.

    Subclass it and override what you need. ``with hook:`` activates the hook for all
    functions that this thread calls; `add_hook` for one class of custom autograd
    Functions (in all threads), for one torch function (``F.linear``, in the calling
    thread), or for one autograd node (``loss.grad_fn``: its backward).

    Hooks see the functions that the program and its modules call: ``F.cross_entropy``,
    ``x + y``, ``MyFunction.apply``. They do not see the functions called inside of
    these, except in the forward of a custom Function. Reading an attribute, and other
    calls that compute nothing, are not functions.

    Callbacks get ``function``, a `FunctionCall`; ``in_data``, the input tensors that
    are still alive (None for the others); and in backward ``out_grad``: of the autograd
    nodes of the function, the gradients of the one that runs first, one for each output
    of this node. None stands for an output without a gradient and, after the function,
    for a gradient freed by then: hooks keep no tensor alive.

    However many autograd nodes a function made, a hook gets one pair of backward
    callbacks for it, if the hook is active when the backward pass starts, even if it
    was not active in the forward. A node whose forward the hook did not see counts as a
    function with the node's name, and so does one that a backward pass has made
    (``create_graph``). A call that raises has no postprocess callback.

    The semantics are those of ``chainer.FunctionHook`` 7.8.

    Example:
        >>> class Printer(FunctionHook):
        ...     name = "Printer"
        ...     def forward_preprocess(self, function, in_data):
        ...         print("forward", function.label, function.input_shapes)
        ...     def backward_preprocess(self, function, in_data, out_grad):
        ...         print("backward", function.label, function.node_names)
        >>> with Printer():
        ...     F.cross_entropy(layer(x), targets).backward()
        forward linear ((2, 3), (5, 3), (5,))
        forward cross_entropy ((2, 5), (2,))
        backward cross_entropy ('LogSoftmaxBackward0', 'NllLossBackward0')
        backward linear ('TBackward0', 'AddmmBackward0')
    """

    name = "FunctionHook"
    _thread_wide = on_functions

    def added(self, function: Any) -> None:
        """Called when the hook is registered: on `function`, or thread-wide (None)."""

    def deleted(self, function: Any) -> None:
        """Called when the hook is removed: from `function`, or thread-wide (None)."""

    def forward_preprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        """Called before a function."""

    def forward_postprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        """Called after a function."""

    def backward_preprocess(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        """Called before the backward of a function."""

    def backward_postprocess(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        """Called after the backward of a function."""

    def _begins(self, function: FunctionCall, is_backward: bool = False) -> None:
        """A call, or its backward, is just about to run."""

    def _over(self, function: FunctionCall | None, failed: bool = False) -> None:
        """A call, or its backward, has just run; None: the hook was taken off, and is
        not notified any more of how open calls end."""

    def _attachments(self) -> tuple[Attachment, ...]:
        """What has to be on torch while the hook is active."""
        return ()

    def _new_subscription(self) -> FollowedFunctions:
        return FollowedFunctions(
            self,
            is_replaced=lambda f: self.name in subscriptions_of_function(f),
            names_nodes=True,
        )
