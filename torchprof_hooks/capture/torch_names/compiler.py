"""Private names of ``torch.compile``, ``torch.export`` and ``torch.jit``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any, Final, NamedTuple

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


def before_compilation(function: Callable[..., Any]) -> Callable[..., Any]:
    """What the user gave to torch.compile: if that was a module, torch has put it into
    a closure. `function` itself if torch does that differently."""
    namespace = getattr(function, "__globals__", {})
    if namespace.get("__name__") != "torch._dynamo.external_utils":
        return function
    cells = getattr(function, "__closure__", None) or ()
    values = (cell.cell_contents for cell in cells)
    closure = dict(zip(function.__code__.co_freevars, values, strict=True))
    original: Callable[..., Any] = closure.get("fn", function)
    return original


_DYNAMO: Final = "torch._dynamo.eval_frame"

#: A local variable that code made by ``torch.compile`` has just before it runs.
_ABOUT_TO_RUN: Final = "saved_dynamic_layer_stack_depth"


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


def eval_frame_setter() -> Place:
    """The function by which torch.compile switches itself on just before it runs a
    compiled function, and back just after.

    There is none while torch.compile is not loaded. torch has no hook for this. Without
    it, the kernels that compiled functions call show as functions of their own, if no
    gradient is needed.
    """
    if not is_compiler_loaded():
        return Place(None, "")
    return Place(sys.modules[_DYNAMO], "_maybe_set_eval_frame")


class CompiledCall(NamedTuple):
    """A call of a function made by torch.compile.

    frame: id of torch.compile's frame that runs the call, which lives until its end.
    function, args, kwargs: what is run, and with what.
    has_returned, outputs: whether it has returned yet, and what.
    tells_outputs: whether the frame keeps outputs; up to torch 2.10 it does not.
    """

    frame: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    has_returned: bool
    outputs: object
    tells_outputs: bool = True

    def at_end(self, handled: BaseException | None) -> CompiledCall:
        """This call when it is over.

        handled: the exception that was being handled when the call began. If another
            one is being handled now, it has ended the call.
        """
        if self.tells_outputs:
            return self
        return self._replace(has_returned=sys.exc_info()[1] is handled)


def compiled_call_on_stack() -> CompiledCall | None:
    """The compiled call around which torch.compile is being switched on or off; None if
    it is switched for another reason. To be called from a function that the replacement
    of `eval_frame_setter` calls, as this counts frames."""
    frame = sys._getframe(3)
    is_dynamo = frame.f_globals.get("__name__") == _DYNAMO
    if not is_dynamo or "fn" not in frame.f_code.co_freevars:
        return None
    variables = frame.f_locals
    if _ABOUT_TO_RUN not in variables:
        return None
    return CompiledCall(
        id(frame),
        before_compilation(variables["fn"]),
        variables.get("args", ()),
        variables.get("kwargs", {}),
        "result" in variables,
        variables.get("result"),
        "result" in {*frame.f_code.co_varnames, *frame.f_code.co_cellvars},
    )


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
