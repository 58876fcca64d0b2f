"""Private names of Inductor, the compiler behind ``torch.compile``.

It writes a Python module for each graph, the wrapper, with a class ``Runner`` whose
method ``call`` allocates memory and calls kernels, one statement for each.
"""

from __future__ import annotations

import inspect
import operator
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import torch

from torchprof_hooks.kernel.torch_names import Place

_NOTICE: Final = "set_kernel_post_grad_provenance_tracing"
_PARAMETERS: Final = ("node_schedule", "kernel_name", "is_extern")
#: The modules that know the function by its name.
NOTICED_IN: Final = (
    "torch._inductor.debug",
    "torch._inductor.codegen.cpp",
    "torch._inductor.codegen.triton",
)
#: Keys of what is known of a node of a graph: the modules whose calls have made it, or
#: those of the forward node whose gradient it computes.
_STACK, _STACK_OF_FORWARD = "nn_module_stack", "fwd_nn_module_stack"
_GRAPH: Final = "torch._inductor.graph"
#: Which a node has, unless a pass of Inductor's has made it.
_KNOWN: Final = frozenset(("seq_nr", "from_node", _STACK, _STACK_OF_FORWARD))


def kernel_notice(module: str) -> Place:
    """The function that Inductor calls for each kernel call that it writes, in the
    order of the code, as one of `NOTICED_IN` knows it."""
    place = Place(sys.modules.get(module), _NOTICE)
    return place if _takes(place.read(), _PARAMETERS) else Place(None, _NOTICE)


def _takes(function: Any, names: tuple[str, ...]) -> bool:
    if not isinstance(function, FunctionType):
        return False
    # Not by its signature: that takes longer to find.
    code: CodeType = inspect.unwrap(function).__code__
    return code.co_varnames[: len(names)] == names and code.co_argcount == len(names)


def wrapper_maker() -> Place:
    """The method of a graph that writes its wrapper, and returns that as a module."""
    module, name = sys.modules.get(_GRAPH), "compile_to_module"
    place = Place(getattr(module, "GraphLowering", None), name)
    return place if _takes(place.read(), ("self",)) else Place(None, name)


def load_inductor() -> None:
    """Import what is looked for here: when Inductor is about to be called, at the
    earliest, as that takes seconds."""
    for name in (*NOTICED_IN, _GRAPH):
        with suppress(Exception):  # it meets the same
            import_module(name)


def inductor_entry() -> Place:
    """What ``torch.compile`` calls to have Inductor compile a graph."""
    kind = getattr(torch, "_TorchCompileInductorWrapper", None)
    return Place(kind, "__call__")


def wrappers() -> list[ModuleType]:
    """All wrappers that are loaded, whether they were compiled or came from a cache."""
    cache = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    loaded = list(getattr(cache, "modules", ()))
    return [module for module in loaded if "call" in vars(module)]


def call_of(wrapper: ModuleType) -> FunctionType | None:
    """The function that runs all kernels, if it is as Inductor has made it."""
    runner = vars(wrapper).get("Runner")
    found = vars(runner).get("call") if isinstance(runner, type) else None
    return found if _is_of(wrapper, found, ("self", "args")) else None


def partitions_of(wrapper: ModuleType) -> dict[str, FunctionType]:
    """The functions that it calls for partitions of the kernels, by name: with CUDA
    graphs, each is captured in one."""
    return {
        name: each
        for name, each in vars(wrapper).items()
        if name.startswith("partition_") and _is_of(wrapper, each, ("args",))
    }


def _is_of(wrapper: ModuleType, function: Any, arguments: tuple[str, ...]) -> bool:
    if not isinstance(function, FunctionType) or function.__closure__:
        return False
    code = function.__code__
    is_original = code.co_filename == wrapper.__file__
    return is_original and code.co_varnames[: code.co_argcount] == arguments


def is_inductor_loaded() -> bool:
    """Whether there may be code that it has compiled."""
    return NOTICED_IN[0] in sys.modules


def missing() -> str:
    """What this torch lacks, once Inductor is loaded; "" if that is nothing."""
    if not is_inductor_loaded():
        return ""
    places = [*map(kernel_notice, NOTICED_IN), inductor_entry()]
    if _GRAPH in sys.modules:  # other backends load parts of Inductor without it
        places.append(wrapper_maker())
    return next((each.name for each in places if each.read() is None), "")


# Nodes of graphs


class ModuleCall(NamedTuple):
    """A call of a module in which a node was made.

    key: the id of the module at that time; 0 if torch has not kept it.
    source: where the compiled function found the module: ``L['self'].blocks.0``.
    """

    key: int
    source: str
    class_name: str


def nodes_of(schedule: Any, is_extern: bool) -> list[Any]:
    """The nodes of the graph that a kernel computes, in the order of the graph, without
    views.

    schedule: what Inductor gives to `kernel_notice`: a list of its scheduler's nodes,
        or the kernel, if it is one of torch's own (`is_extern`).
    """
    if is_extern:
        return [*_node_of_extern(schedule)]
    nodes = sorted(
        {
            node
            for each in schedule
            for node in getattr(getattr(each, "node", None), "origins", ())
            if node.op == "call_function"
        }
    )
    return [node for node in nodes if not _is_view(node.target)] or nodes


def _node_of_extern(kernel: Any) -> Iterator[Any]:
    """The node of a kernel of torch's own: what was fused into its inputs, which has
    run in another kernel, is among its origins, too."""
    if kernel.origin_node is not None:
        yield kernel.origin_node
        return
    calls = sorted(node for node in kernel.origins if node.op == "call_function")
    same = [n for n in calls if n.target is getattr(kernel, "op_overload", None)]
    yield from (same or calls)[-1:]


def _is_view(target: Any) -> bool:
    return target is operator.getitem or bool(getattr(target, "is_view", False))


def computes(name: str) -> bool:
    """Whether code that calls `name` is certain to give a device something to do: a
    product or the like, or an operator of torch's that is neither a view nor in
    place."""
    found: Any = torch.ops
    library, *names = name.removeprefix("torch.ops.").split(".")
    if library != "aten" or names[0].endswith("_"):
        return library == "extern_kernels"
    for part in (library, *names):
        found = getattr(found, part, None)
    return found is not None and not _is_view(found)


def calls_of(node: Any) -> tuple[tuple[ModuleCall, ...], bool]:
    """The calls of modules that a node belongs to, outermost first, and whether it is
    of their forward. A product with a sum that Inductor has made of several nodes
    belongs to whom the product belongs, and a sum of gradients to whom one of them
    does."""
    found = _own_calls(node)
    seen = 0
    while not found[0] and _is_made_of_others(node) and seen < _FARTHEST:
        is_sum = getattr(node.target, "__name__", "").startswith("addmm")
        inputs = node.args[1:3] if is_sum else node.all_input_nodes
        inputs = [each for each in inputs if isinstance(each, torch.fx.Node)]
        if not inputs:
            break
        node, seen = inputs[0], seen + 1
        found = _own_calls(node)
    return found


def _is_made_of_others(node: Any) -> bool:
    if not _KNOWN & node.meta.keys():
        return True
    is_gradient = node.meta.get("partitioner_tag") == "is_backward"
    return is_gradient and node.target is torch.ops.aten.add.Tensor


#: How many nodes away that is looked for.
_FARTHEST: Final = 4


def _own_calls(node: Any) -> tuple[tuple[ModuleCall, ...], bool]:
    of_backward = node.meta.get(_STACK_OF_FORWARD)
    stack = of_backward or node.meta.get(_STACK) or {}
    if not stack:
        step = _STEP.search(node.meta.get("stack_trace") or "")
        return _step_of(step[1]) if step else (), True
    calls = (
        ModuleCall(_number(key), str(source), getattr(kind, "__name__", str(kind)))
        for key, (source, kind) in stack.items()
    )
    return tuple(calls), not of_backward


#: `ModuleCall.source` of a step of one of torch's optimizers.
OPTIMIZER: Final = "optimizer"
_STEP: Final = re.compile(r'[\\/]torch[\\/]optim[\\/](\w+)\.py", line \d+, in step\b')


def _step_of(module: str) -> tuple[ModuleCall, ...]:
    """A step of the optimizer whose method `step` is in this module of torch.optim."""
    kinds = [each for each in vars(torch.optim).values() if isinstance(each, type)]
    where = f"torch.optim.{module}"
    own = (k for k in kinds if k.__module__ == where and "step" in vars(k))
    return tuple(ModuleCall(0, OPTIMIZER, kind.__name__) for kind in own)[:1]


def _number(key: str) -> int:
    """The id in a key: of the second call of a module, the key ends with ``@1``."""
    text = key.partition("@")[0]
    return int(text) if text.isdigit() else 0
