"""Private names of ``torch.autograd``."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any, Final

import torch
from torch import autograd

from torchprof_hooks.capture.torch_names import Canary
from torchprof_hooks.capture.torch_names.place import Place

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
    """The autograd node of `tensor`; None if it is a leaf, or torch refuses to tell (a
    view that was changed in place without gradients). Neither classes derived from
    Tensor nor modes see this call."""
    with torch._C.DisableTorchFunction():
        try:
            return tensor.grad_fn
        except RuntimeError:
            return None


class NodeHookCarrier:
    """Calls the same Python callbacks in front of many autograd nodes, with the
    gradient of the first output.

    ``Node.register_prehook`` makes a new ordered dict and a handle for each node, which
    costs ten times as much as all the rest. Tensor hooks work in another way: the node
    gets the *dict* of a tensor's hooks. All our nodes share one dict with its
    callbacks, so emptying that dict silences all of them at once.
    """

    __slots__ = ("_carrier", "callbacks")

    def __init__(self) -> None:
        self.callbacks: dict[int, Callable[[Any], None]] = {}
        with torch._C.DisableTorchFunction():  # no mode is to see this
            carrier: Any = torch.empty(0, device="cpu")
            carrier._backward_hooks = self.callbacks
        self._carrier = carrier

    def put_in_front_of(self, nodes: list[Any]) -> None:
        """Have the callbacks called, with a gradient, before each node."""
        carrier = self._carrier
        for node in nodes:
            node._register_hook_dict(carrier)


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
    Where there is none, or nodes do not tell what we need, we do not see backward
    passes: their time is outside modules."""
    RECOMPUTATION.works()  # reports say so if not
    END_OF_NODES.works()
    return _ENGINE_ENTRY if BACKWARD_PASSES.works() else Place(None, "")


_ENGINE_ENTRY: Final = Place(autograd, "_engine_run_backward")


def run_engine(output: torch.Tensor, gradient: torch.Tensor) -> None:
    """Run a backward pass that no patch sees; none if torch hides the engine."""
    engine = getattr(autograd.Variable, "_execution_engine", None)
    if engine is not None:
        engine.run_backward((output,), (gradient,), False, False, (), False, True)


def _follows_passes() -> bool:
    """Whether a node tells its number, the entry of the engine can be replaced, and
    the node that runs tells which one it is."""
    leaf = torch.ones(1, device="cpu", requires_grad=True)
    low = next_sequence_number()
    output = leaf * 2
    node, high = node_of(output), next_sequence_number()
    seen: list[Any] = []
    hooks = NodeHookCarrier()
    hooks.callbacks[0] = lambda _: seen.append(sequence_number(current_autograd_node()))
    hooks.put_in_front_of([node])
    _run_through_entry(output, leaf, seen)
    return bool(low < high and seen == ["entry", low])


def _run_through_entry(output: Any, leaf: Any, seen: list[Any]) -> None:
    place, thread = _ENGINE_ENTRY, get_ident()
    original: Any = place.read()

    def entry(*args: Any, **kwargs: Any) -> Any:
        if get_ident() == thread:
            seen.append("entry")
        return original(*args, **kwargs)

    place.write(entry)
    try:
        autograd.grad((output,), (leaf,))
    finally:
        if place.read() is entry:
            place.write(original)


def _knows_running_pass() -> bool:
    leaf = torch.ones(1, device="cpu", requires_grad=True)
    output = leaf * 2
    seen: list[int] = []
    node_of(output).register_prehook(lambda _: seen.append(current_graph_task()))
    autograd.grad((output,), (leaf,))
    return current_graph_task() == -1 and len(seen) == 1 and seen[0] != -1


def _hears_end_of_nodes() -> bool:
    leaf = torch.ones(1, device="cpu", requires_grad=True)
    output = leaf * 2
    seen: list[str] = []

    def run(_: Any) -> None:
        at_end_of_nodes(lambda: seen.append("end"))
        seen.append("node")

    node_of(output).register_prehook(run)
    autograd.grad((output,), (leaf,))
    return seen == ["node", "end"]


#: Without it, no backward pass is followed: its time is outside modules.
BACKWARD_PASSES: Final = Canary(
    "backward passes",
    (
        "_get_sequence_nr",
        "_sequence_nr",
        "_current_autograd_node",
        "_register_hook_dict",
        "_engine_run_backward",
    ),
    _follows_passes,
)
#: Without it, modules recomputed in the engine's threads for devices are not measured.
RECOMPUTATION: Final = Canary(
    "recomputation in threads of devices",
    ("_current_graph_task_id",),
    _knows_running_pass,
)
#: Without it, time of waiting for gradients at the end of a pass may be on the first
#: layer.
END_OF_NODES: Final = Canary(
    "the end of backward passes", ("queue_callback",), _hears_end_of_nodes
)
