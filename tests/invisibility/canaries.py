"""Canaries that tests alone ask: without the private names of torch that these watch, a
program is told less, and nothing that is wrong."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch
from torch.nn.modules import module as nn_module
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tests.compiled import IS_DIVIDED
from torchprof_hooks.kernel.torch_names.canaries import CANARIES, Canary
from torchprof_hooks.kernel.torch_names.compiler import (
    compilation_context,
    is_tracing,
)
from torchprof_hooks.kernel.torch_names.functions import operator_formula
from torchprof_hooks.kernel.torch_names.inductor import (
    NOTICED_IN,
    call_of,
    calls_of,
    kernel_notice,
    load_inductor,
    nodes_of,
    wrappers,
)
from torchprof_hooks.kernel.torch_names.modules import (
    caller_kwargs,
    is_optimizer_hook,
    modules_on_stack,
)
from torchprof_hooks.kernel.torch_names.profiler import (
    ALLOCATION,
    NODE_SCOPE,
    OPERATION,
    TENSOR,
    USER_SCOPE,
    make_profiler,
    shows_devices,
)


class _Module(torch.nn.Module):
    """Notes whose calls are on the stack while it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.nn.Module] = []

    def forward(self, value: Any, *, key: int = 0) -> Any:
        self.seen = modules_on_stack()
        return value


def _are_modules_on_stack() -> bool:
    module = _Module()
    module(1)
    return module.seen == [module]


def _are_keywords_found() -> bool:
    seen: list[dict[str, Any]] = []
    with nn_module.register_module_forward_pre_hook(
        lambda module, args: seen.append(caller_kwargs())
    ):
        _Module()(1, key=2)
    return seen == [{"key": 2}]


def _nothing(*given: Any) -> None:
    """A hook."""


def _are_optimizer_hooks_in_tables() -> bool:
    with register_optimizer_step_pre_hook(_nothing):
        is_known = is_optimizer_hook(_nothing)
    return is_known and not is_optimizer_hook(_nothing)


def _is_tracing_known() -> bool:
    guards = torch._guards
    before = is_tracing()
    with guards.tracing(guards.TracingContext(None)):
        return is_tracing() and not before


def _are_traces_read() -> bool:
    kinds = TENSOR is not type(None) and None not in (
        USER_SCOPE,
        NODE_SCOPE,
        OPERATION,
        ALLOCATION,
    )
    profiler = make_profiler(with_tensors=True)
    needed = ("start", "stop", "export_chrome_trace", "profiler")
    return kinds and all(hasattr(profiler, name) for name in needed)


def _are_books_kept() -> bool:
    utils = importlib.import_module("torch._dynamo.utils")
    names = "compilation_time_metrics", "counters", "get_compilation_metrics"
    return (
        all(hasattr(utils, name) for name in (*names, "graph_break_reasons"))
        and "total" not in utils.counters["no such group"]
        and compilation_context().read() is not None
    )


def _are_kernels_noticed() -> bool:
    """Whether Inductor says whose kernels are, and writes them as is expected."""
    with torch.random.fork_rng(devices=[]):
        module = torch.nn.Linear(2, 2, bias=False)
    # A new code each time: else, it would be compiled only once.
    compiled = torch.compile(eval("lambda module, x: module(x)"), fullgraph=True)
    seen: list[Any] = []

    def notice(node_schedule: Any, kernel_name: str, is_extern: bool = False) -> Any:
        (node,) = nodes_of(node_schedule, is_extern)
        seen.extend((kernel_name, *calls_of(node)))
        return original(node_schedule, kernel_name, is_extern)

    with (
        warnings.catch_warnings(),
        torch.no_grad(),
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        warnings.simplefilter("ignore")
        load_inductor()
        place = kernel_notice(NOTICED_IN[0])
        original = place.read()
        place.write(notice)
        try:
            compiled(module, torch.ones(2, 2))
        finally:
            place.write(original)
    name, ((key, _, kind),), is_forward = seen
    is_right = (name, key, kind) == ("extern_kernels.mm", id(module), "Linear")
    return is_right and is_forward and None not in map(call_of, wrappers())


#: All there are, with those that the package asks.
ALL_CANARIES: tuple[Canary, ...] = (
    *CANARIES,
    Canary("calls around a block", ("Module._call_impl",), _are_modules_on_stack),
    Canary("keyword arguments", ("Module._call_impl",), _are_keywords_found),
    Canary(
        "steps of optimizers",
        ("profile_hook_step", "_global_optimizer_pre_hooks"),
        _are_optimizer_hooks_in_tables,
    ),
    Canary("tracing", ("_guards.TracingContext",), _is_tracing_known),
    Canary(
        "traces",
        ("_profiler._TensorMetadata", "RecordScope", "_EventType", "_KinetoProfile"),
        _are_traces_read,
    ),
    Canary(
        "idle time of devices",
        ("_autograd._KinetoEvent", "_ProfilerResult"),
        shows_devices,
    ),
    Canary(
        "what torch.compile did",
        ("_dynamo.utils.counters", "_dynamo.callback.CompilationCallbackHandler"),
        _are_books_kept,
    ),
    Canary(
        "floating-point operations",
        ("flop_counter.flop_registry",),
        lambda: operator_formula("aten::mm") is not None,
    ),
)
if IS_DIVIDED:
    ALL_CANARIES += (
        Canary(
            "kernels of compiled code",
            (
                "set_kernel_post_grad_provenance_tracing",
                "GraphLowering.compile_to_module",
                "_TorchCompileInductorWrapper.__call__",
                "PyCodeCache.modules",
            ),
            _are_kernels_noticed,
        ),
    )
