"""Private names of ``torch.autograd``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import autograd

from torchprof_hooks.kernel.torch_names import Place

#: What ``AccumulateGrad`` nodes report in place of a sequence number.
NO_SEQUENCE_NUMBER = 2**64 - 1


#: Sequence number that this thread's next autograd node will get.
next_sequence_number: Callable[[], int] = getattr(
    torch._C._autograd, "_get_sequence_nr", lambda: 0
)
#: The autograd node whose hook is running.
current_autograd_node: Callable[[], Any] = getattr(
    torch._C, "_current_autograd_node", lambda: None
)
#: Number of the backward pass that this thread works for; -1 outside of one.
current_graph_task: Callable[[], int] = getattr(
    torch._C, "_current_graph_task_id", lambda: -1
)


def sequence_number(node: Any) -> int:
    """The number that `node` got when it was made (see `NO_SEQUENCE_NUMBER`)."""
    return int(node._sequence_nr())


def node_of(tensor: torch.Tensor) -> Any:
    """The autograd node of `tensor`; None if it is a leaf, or torch refuses to say (a
    view that was changed in place without gradients). Neither classes derived from
    Tensor nor modes see this call."""
    with torch._C.DisableTorchFunction():
        try:
            return tensor.grad_fn
        except RuntimeError:
            return None


#: Have a callback called when the engine has run the last node of the pass that this
#: thread works for. Callbacks run in the order in which they were queued.
at_end_of_nodes: Callable[[Callable[[], None]], None] = getattr(
    getattr(autograd.Variable, "_execution_engine", None),
    "queue_callback",
    lambda callback: None,
)


def engine_entry() -> Place:
    """The function through which both ``torch.autograd.backward`` and
    ``torch.autograd.grad`` enter the engine. torch's own compiler replaces it, too.
    Where there is none, we do not see backward passes: their time is outside modules.
    """
    return Place(autograd, "_engine_run_backward")
