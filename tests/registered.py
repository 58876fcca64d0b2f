"""All of torch and Python that this package touches while it is active."""

from __future__ import annotations

import builtins
import gc
import sys
import warnings
from typing import Any

import torch
import torch.jit._recursive
from torch.autograd import function, profiler, profiler_legacy
from torch.nn.modules import module as nn_module
from torch.optim import Optimizer
from torch.utils.data import DataLoader, dataloader

from torchprof_hooks.kernel.core import CORE, Interceptor
from torchprof_hooks.kernel.interception import interception
from torchprof_hooks.kernel.torch_names import Place
from torchprof_hooks.kernel.torch_names.distributed import (
    collectives,
    functional_wait,
    group_maker,
    prepare_for_backward,
    wait_method,
)
from torchprof_hooks.kernel.torch_names.inductor import (
    NOTICED_IN,
    inductor_entry,
    kernel_notice,
    wrapper_maker,
    wrappers,
)

#: Functions of torch's that may be replaced: where they are.
REPLACED: dict[str, tuple[Any, str]] = {
    "entry of the engine": (torch.autograd, "_engine_run_backward"),
    "maker of gradients": (torch.autograd, "_make_grads"),
    "iterators over loaders": (DataLoader, "__iter__"),
    "batches": (dataloader._BaseDataLoaderIter, "__next__"),
    "check for overrides": (torch.overrides, "has_torch_function"),
    "return of modes": (torch.overrides, "_push_mode"),
    "begin of ranges": (profiler.record_function, "__enter__"),
    "end of ranges": (profiler.record_function, "__exit__"),
    "apply": (function._SingleLevelFunction, "apply"),
    "public apply": (function.Function, "apply"),
    "contexts": (function.BackwardCFunction, "__init__"),
    "attributes": (function.FunctionMeta, "__getattribute__"),
    "compiling": inductor_entry(),
    "scripting": (torch.jit._recursive, "create_script_module"),
    **{
        f"{place.owner}.{place.name}": place
        for place in (
            group_maker(),
            wait_method(),
            functional_wait(),
            prepare_for_backward(),
            *(found.place for found in collectives()),
        )
        if place.owner is not None
    },
    **{
        f"{name} of torch's profilers": (module, name)
        for module in (profiler, profiler_legacy)
        for name in vars(module)
        if name.strip("_").startswith(("prepare_p", "enable_p", "disable_p"))
    },
}


def _is_ours(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("torchprof_hooks")


def _compiler() -> dict[str, object]:
    """What of ours is in torch.compile, which is imported late."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    switch = getattr(frames, "_maybe_set_eval_frame", None)
    callbacks = sys.modules.get("torch._dynamo.callback")
    handlers = getattr(callbacks, "CompilationCallbackHandler", None)
    compiling = getattr(handlers, "install_callbacks", None)
    places = {name: kernel_notice(name) for name in NOTICED_IN}
    places["wrappers"] = wrapper_maker()
    found = {name: place.read() for name, place in places.items()}
    return {
        **{name: each if _is_ours(each) else None for name, each in found.items()},
        "compiled code": [w for w in wrappers() if _is_marked(w)],
        "context of compilations": compiling if _is_ours(compiling) else None,
        "switch of the compiler": switch if _is_ours(switch) else None,
    }


def _is_marked(wrapper: Any) -> bool:
    """Whether compiled code calls something of ours."""
    return any(map(callable, vars(wrapper)["Runner"].call.__code__.co_consts))


def _implementation_of_calls() -> object:
    """What torch is to call in place of modules' own: ours, which stays, is as good as
    none unless it has users."""
    found = vars(torch.nn.Module)["_compiled_call_impl"]
    is_idle = isinstance(found, Interceptor) and not interception.users
    return None if is_idle else found


def registered() -> dict[str, object]:
    """What of ours could be there, with what is there."""
    tables = {
        f"{module['__name__']}.{name}": dict(table)
        for module in (vars(nn_module), vars(sys.modules[Optimizer.__module__]))
        for name, table in module.items()
        if name.startswith("_global_") and isinstance(table, dict)
    }
    return {
        **tables,
        **{what: Place(*place).read() for what, place in REPLACED.items()},
        **_compiler(),
        "notified of modules": [
            id(user) for user in interception.users if user.cursors
        ],
        "implementation of calls": _implementation_of_calls(),
        "tensors are counted": CORE.module is not None and CORE.module.counts_tensors(),
        "allocators are observed": CORE.module is not None
        and CORE.module.observes_allocators(),
        "function modes": torch._C._len_torch_function_stack(),
        "torch functions are on": torch._C._is_torch_function_enabled(),
        "notified of collections": [each for each in gc.callbacks if _is_ours(each)],
        "profile function": sys.getprofile(),
        "trace function": sys.gettrace(),
        # Those of libraries' own kinds of warnings, or for modules of theirs, come with
        # the libraries.
        "warning filters": [
            f
            for f in warnings.filters
            if f[2] in vars(builtins).values() and "torch." not in str(f[3])
        ],
    }
