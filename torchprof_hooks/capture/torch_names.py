"""Every private torch name that this package uses, each behind one function.

torch may rename or drop them. A function whose name is gone says in its docstring
what the package then does instead; nothing else in the package has to know.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import autograd

#: What ``AccumulateGrad`` nodes report in place of a sequence number.
NO_SEQUENCE_NUMBER = 2**64 - 1


def _missing_sequence_number() -> int:
    """Without the thread's counter every module call owns an empty interval of nodes:
    all backward time is then reported as unattributed."""
    return 0


#: Sequence number that this thread's next autograd node will get.
next_sequence_number: Callable[[], int] = getattr(
    torch._C._autograd, "_get_sequence_nr", _missing_sequence_number
)


class _UnknownNode:
    """Stands for the running node where torch does not tell it. A boundary then does
    not know which one it is, and backward time stays outside modules."""

    @staticmethod
    def _sequence_nr() -> int:
        return NO_SEQUENCE_NUMBER


#: The autograd node whose hook is running.
current_autograd_node: Callable[[], Any] = getattr(
    torch._C, "_current_autograd_node", _UnknownNode
)


def _missing_graph_task() -> int:
    """Without graph task ids, modules recomputed in a device's backward thread are not
    recognised as ours; they are then simply not measured."""
    return -1


#: Number of the backward pass that this thread is working for, -1 outside of one.
current_graph_task: Callable[[], int] = getattr(
    torch._C, "_current_graph_task_id", _missing_graph_task
)


def sequence_number(node: Any) -> int:
    """The number that `node` got when it was made (see `NO_SEQUENCE_NUMBER`)."""
    return int(node._sequence_nr())


def node_of(tensor: torch.Tensor) -> Any:
    """The autograd node of `tensor`, None of a leaf or where torch refuses to tell (a
    view that was changed in place without gradients). Neither classes derived from
    Tensor nor modes get to see that somebody looked."""
    with torch._C.DisableTorchFunction():
        try:
            return tensor.grad_fn
        except RuntimeError:
            return None


class NodeHookCarrier:
    """Puts one and the same Python callback in front of many autograd nodes, cheaply.

    ``Node.register_prehook`` makes a new ordered dict and a handle for each node, which
    costs ten times as much as all the rest. Tensor hooks go another way: a node is
    given the hook *dict* of a tensor. Nodes that share the dict share its callbacks,
    and emptying the dict silences all of them at once. Where that entry is missing, the
    public ``register_prehook`` does the same work.
    """

    __slots__ = ("_carrier", "callbacks")

    def __init__(self) -> None:
        self.callbacks: dict[int, Callable[[Any], None]] = {}
        with torch._C.DisableTorchFunction():  # no mode is to see this
            carrier: Any = torch.empty(0, device="cpu")
            carrier._backward_hooks = self.callbacks
        self._carrier = carrier

    def put_in_front_of(self, nodes: list[Any]) -> None:
        """Have the callbacks called, with a gradient or several, before each node."""
        carrier = self._carrier
        for node in nodes:
            try:
                node._register_hook_dict(carrier)
            except AttributeError:
                node.register_prehook(self._call)

    def _call(self, gradients: Any) -> None:
        for callback in list(self.callbacks.values()):
            callback(gradients)


RunBackward = Callable[..., Any]


def replace_backward_entry(make: Callable[[RunBackward], RunBackward]) -> RunBackward:
    """Put ``make(entry)`` in place of the function through which both
    ``torch.autograd.backward`` and ``torch.autograd.grad`` enter the engine.

    Returns the function that was there. torch's own compiler replaces the same name.
    Without it, backward passes are not seen: their time is outside modules.
    """
    entry: RunBackward = getattr(autograd, "_engine_run_backward", None) or _no_entry
    autograd._engine_run_backward = make(entry)  # type: ignore[attr-defined]
    return entry


def restore_backward_entry(ours: RunBackward, entry: RunBackward) -> None:
    """Undo `replace_backward_entry`, unless somebody replaced the function after us:
    what they installed calls ours, which then only passes on."""
    if getattr(autograd, "_engine_run_backward", None) is ours:
        autograd._engine_run_backward = entry  # type: ignore[attr-defined]


def _no_entry(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("this torch has no engine entry; nothing can have called this")


def is_compiled_autograd_on() -> bool:
    """Whether backward passes of this thread are being compiled. Hooks on nodes would
    then be traced into the compiled backward. Assumes not, if torch cannot tell."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(module and getattr(module, "compiled_autograd_enabled", False))


def caller_kwargs() -> dict[str, Any]:
    """Keyword arguments of the module call whose *global* forward pre-hook is running.

    Global pre-hooks are not given them, so they are read from the frame of
    ``torch.nn.Module._call_impl``. If torch arranges that differently: no keywords.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == _MODULE_FILE and "kwargs" in frame.f_locals:
            return dict(frame.f_locals["kwargs"])
        frame = frame.f_back
    return {}


def owners_on_stack() -> list[int]:
    """Ids of the modules and optimizers whose call is on this thread's Python stack,
    outermost first."""
    owners: list[int] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if (code.co_name, code.co_filename) in _CALLING_CODE:
            owners.append(id(frame.f_locals.get("self")))
        frame = frame.f_back
    owners.reverse()
    return owners


def passes_on_stack() -> int:
    """How many backward passes on this thread's Python stack have begun to run."""
    passes = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        passes += frame.f_code.co_filename == autograd.graph.__file__ and (
            frame.f_code.co_name == "_engine_run_backward"
        )
        frame = frame.f_back
    return passes


_MODULE_FILE = torch.nn.Module.__call__.__code__.co_filename
_CALLING_CODE = {
    ("_call_impl", _MODULE_FILE),
    ("wrapper", torch.optim.Optimizer.profile_hook_step.__code__.co_filename),
}


def pre_hooks_of(module: torch.nn.Module) -> list[Any]:
    """The forward pre-hooks in a module's own table."""
    return list(module._forward_pre_hooks.values())


def is_tracing() -> bool:
    """Whether torch.compile is at work in this thread: it then runs graph modules and
    backward passes on tensors without content, which are nobody's training. Assumes
    not, if torch cannot tell."""
    context = getattr(torch._guards, "TracingContext", None)
    return context is not None and context.try_get() is not None


def is_compiled_module(module: torch.nn.Module) -> bool:
    """Whether calling `module` runs code made by torch.compile."""
    return (
        type(module).__name__ == "OptimizedModule"
        or vars(module).get("_compiled_call_impl") is not None
    )


def original_module(module: torch.nn.Module) -> torch.nn.Module:
    """What a module made by ``torch.compile(module)`` was made of; others as is."""
    if type(module).__name__ == "OptimizedModule":
        return module._modules.get("_orig_mod") or module
    return module


def is_replica(module: torch.nn.Module) -> bool:
    """Whether `module` is a copy that DataParallel made for one forward pass."""
    return bool(vars(module).get("_is_replica", False))


def class_name(module: torch.nn.Module) -> str:
    """Name of the class that the user wrote, seen through compiled and scripted
    wrappers; the wrapper's own name where torch does not keep the other."""
    module = original_module(module)
    if isinstance(module, torch.jit.ScriptModule):
        return str(getattr(module, "original_name", type(module).__name__))
    return type(module).__name__


def run_engine(output: torch.Tensor, gradient: torch.Tensor) -> None:
    """A backward pass that nobody is told of, or none where torch hides the engine."""
    engine = getattr(autograd.Variable, "_execution_engine", None)
    if engine is not None:
        engine.run_backward((output,), (gradient,), False, False, (), False, True)
