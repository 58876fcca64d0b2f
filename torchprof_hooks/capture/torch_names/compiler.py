"""Private names of ``torch.compile``, ``torch.export`` and ``torch.jit``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Final

import torch

from torchprof_hooks.capture.torch_names.place import Place


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


def has_compiled() -> bool:
    """Whether torch.compile has compiled anything. Assumes so once it has been
    imported, if torch does not count."""
    if not is_compiler_loaded():
        return False
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return counters is None or counters["frames"]["total"] > 0


def compilation_context() -> Place:
    """The method that makes the context in which torch.compile compiles something, in
    whichever thread. Those that it calls back are told of the first begin and of the
    last end of compilations that overlap, in whichever threads these are."""
    module = sys.modules.get("torch._dynamo.callback")
    return Place(
        getattr(module, "CompilationCallbackHandler", None), "install_callbacks"
    )


def watch_compilations(
    begins: Callable[..., object], ends: Callable[..., object]
) -> bool:
    """Have torch.compile call these before and after it compiles something, with what
    it compiles; it forgets them when it is reset. Returns whether it will call them: it
    does not before it has been imported."""
    handler = getattr(
        sys.modules.get("torch._dynamo.callback"), "callback_handler", None
    )
    if handler is None:
        return False
    # The end first: an interrupt may come in between.
    if ends not in handler.end_callbacks:
        handler.register_end_callback(ends)
    if begins not in handler.start_callbacks:
        handler.register_start_callback(begins)
    return True


def unwatch_compilations(
    begins: Callable[..., object], ends: Callable[..., object]
) -> None:
    """Undo `watch_compilations`, if it was done."""
    module = sys.modules.get("torch._dynamo.callback")
    handler = getattr(module, "callback_handler", None)
    if handler is not None:
        if begins in handler.start_callbacks:
            handler.remove_start_callback(begins)
        if ends in handler.end_callbacks:
            handler.remove_end_callback(ends)


def with_inner(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and that of all functions that are made in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from with_inner(constant)


#: The module that defines the context in which torch.export traces, and modules that
#: import it from there by name.
_EXPORTING: Final = (
    "torch._export.utils",
    "torch._dynamo.functional_export",
    "torch.export._trace",
)


def export_contexts() -> Iterator[Place]:
    """All places of the function that makes the context in which torch.export traces a
    model, in modules that are imported by now. torch has no hook for that."""
    for name in _EXPORTING:
        if name in sys.modules:
            yield Place(sys.modules[name], "_compiling_state_context")


def script_module_maker() -> Place:
    """The function that makes a script module of a module and all in it."""
    return Place(sys.modules.get("torch.jit._recursive"), "create_script_module")
