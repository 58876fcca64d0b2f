"""Private names of ``torch.compile`` and ``torch.jit``; and what keeps the compiler out
of our code."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Final

import torch

from torchprof_hooks.kernel.torch_names import Place


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


def _keep_compiler_out_of(codes: Iterable[CodeType]) -> None:
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
    whichever thread. Those that it calls back are notified of the first begin and of
    the last end of compilations that overlap, in whichever threads these are."""
    module = sys.modules.get("torch._dynamo.callback")
    return Place(
        getattr(module, "CompilationCallbackHandler", None), "install_callbacks"
    )


def script_module_maker() -> Place:
    """The function that makes a script module of a module and all in it."""
    return Place(sys.modules.get("torch.jit._recursive"), "create_script_module")


_PACKAGE: Final = __name__.partition(".")[0]

#: The modules of ours that were exempted, and how many modules Python had then: if it
#: has no more, we do not search them again, which would take too long for a hook.
_exempted: set[str] = set()
_modules_searched = 0


def exempt_from_compilation() -> None:
    """Have torch.compile leave the code of this package alone, if it is in use.

    Where it gives up on a function of the user's, it compiles each function that this
    one calls: our hooks too, and the functions that are measured in them.
    """
    global _modules_searched  # noqa: PLW0603
    if not is_compiler_loaded() or len(sys.modules) == _modules_searched:
        return
    modules = sys.modules.copy()  # other threads may import some
    ours = {name: m for name, m in modules.items() if name.startswith(_PACKAGE)}
    for name in ours.keys() - _exempted:
        _keep_compiler_out_of(_code_of(ours[name]))
        _exempted.add(name)
    _modules_searched = len(modules)  # last: an interrupt leaves some to be exempted


def _code_of(module: ModuleType) -> Iterator[CodeType]:
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, FunctionType):
            yield from _with_inner(value.__code__)
        elif isinstance(value, type):
            for member in vars(value).values():
                method = member.fget if isinstance(member, property) else member
                function = getattr(method, "__func__", method)
                if isinstance(function, FunctionType):
                    yield from _with_inner(function.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and that of all functions that are made in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
