"""Private names of ``torch.compile`` and ``torch.jit``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Final

import torch

from torchprof_hooks.kernel.torch_names.place import Place


def is_compiled_autograd_on() -> bool:
    """Whether backward passes of this thread are being compiled: the compiler would
    trace hooks on nodes into the compiled backward. Assumes not, if torch cannot
    tell."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(module and getattr(module, "compiled_autograd_enabled", False))


def is_tracing() -> bool:
    """Whether torch.compile is at work in this thread: it then runs graph modules and
    backward passes on tensors without content, which are no part of the program.
    Assumes not, if torch cannot tell."""
    context = getattr(torch._guards, "TracingContext", None)
    return context is not None and context.try_get() is not None


def is_compiled_module(module: torch.nn.Module) -> bool:
    """Whether calling `module` runs code made by torch.compile."""
    return (
        type(module).__name__ == "OptimizedModule"
        or vars(module).get("_compiled_call_impl") is not None
    )


_DYNAMO: Final = "torch._dynamo.eval_frame"


def keep_compiler_out_of(codes: Iterable[CodeType]) -> None:
    """Have torch.compile never compile this code by itself; it may still inline it into
    a compiled caller. Where torch does not offer that, it may compile the code."""
    skip = getattr(sys.modules.get(_DYNAMO), "skip_code", None)
    if skip is not None:
        for code in codes:
            skip(code)


def is_compiler_loaded() -> bool:
    """Whether torch.compile has been imported, and so may be in use."""
    return _DYNAMO in sys.modules


def compilation_context() -> Place:
    """The method that makes the context in which torch.compile compiles something, in
    whichever thread. Those that it calls back notice the first begin and the last
    end of compilations that overlap, in whichever threads these are."""
    module = sys.modules.get("torch._dynamo.callback")
    return Place(
        getattr(module, "CompilationCallbackHandler", None), "install_callbacks"
    )


def with_inner(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and that of all functions that are made in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from with_inner(constant)


def script_module_maker() -> Place:
    """The function that makes a script module of a module and all in it."""
    return Place(sys.modules.get("torch.jit._recursive"), "create_script_module")
