"""The code that Inductor has written for a graph, with marks behind kernel calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from torchprof_hooks.instruments.compiled.kernel_map import Kernel, KernelMap, map_of
from torchprof_hooks.kernel.torch_names.inductor import call_of

#: Called with the number of each kernel call, once that is done.
Mark = Callable[[int], object]


class NotDividedError(Exception):
    """Why a wrapper stays one line."""


class Wrapper:
    """A wrapper that can be marked.

    kernels: its kernel calls, in the order of the code.
    known: whom they belong to; None if nobody knows.
    run: called in place of the wrapper's function while marks are on. It gets the
        function's arguments, and calls `marked` with these and a `Mark`.

    Raises:
        NotDividedError: it cannot be marked.
    """

    def __init__(
        self, module: ModuleType, run: Callable[[Wrapper, Any, Any], Any]
    ) -> None:
        found, known = call_of(module), map_of(module.__file__)
        if found is None:
            raise NotDividedError("its code is in C++, or was changed by others")
        self._function, self._original = found, found.__code__
        lines = _source_of(module)
        names, self.marked = _marked(lines, found)
        if known is not None and [each.name for each in known.kernels] != names:
            raise NotDividedError("its kernel calls are not those that Inductor named")
        self.known: KernelMap | None = known
        self.kernels: Sequence[Kernel] = (
            [Kernel(name, ()) for name in names] if known is None else known.kernels
        )
        self._running = _calling(self._original, lambda *args: run(self, *args))

    def put_on(self) -> None:
        """Have `run` called, unless another tool has changed the function."""
        if self._function.__code__ is self._original:
            self._function.__code__ = self._running

    def take_off(self) -> None:
        """The function is again as torch has made it."""
        if self._function.__code__ is self._running:
            self._function.__code__ = self._original

    def forget(self) -> None:
        """Take it off for good. Python does not look for garbage in code, and this
        object is in it."""
        self.take_off()
        self._running = self._original


def _source_of(module: ModuleType) -> list[str]:
    try:
        return Path(str(module.__file__)).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        raise NotDividedError("its file is not there any more") from None


_DEFINED: Final = re.compile(r"(\w+) = async_compile\.")
#: A statement that calls something: its results, what is called, and Triton's launcher.
_CALL: Final = re.compile(r"\s+(?:[\w, ]+ = )?([A-Za-z_][\w.]*?)(?:\.run)?\(.*\)")
_TORCHS_OWN: Final = ("extern_kernels.", "torch.ops.", "aten.", "inductor_ops.")
#: Those that only give a view of memory.
_ALLOCATES: Final = ("_alloc_from_pool", "_reinterpret_tensor")
_DEFINES: Final = re.compile(r"( *)def call\(self, args\):")
_MARK: Final = "_torchprof_hooks_mark"


def _marked(
    lines: list[str], function: FunctionType
) -> tuple[list[str], Callable[..., Any]]:
    """The names of kernels, in the order of their calls; and the function with one more
    argument, a `Mark`. Lines stay where they are, so that tracebacks are the same."""
    first = function.__code__.co_firstlineno
    begin = _DEFINES.fullmatch(lines[first - 1]) if len(lines) >= first else None
    if begin is None:
        raise NotDividedError("its code is not as its file says")
    defined = {found[1] for found in map(_DEFINED.match, lines) if found}
    names: list[str] = []
    code = [""] * (first - 1) + [f"def call(self, args, {_MARK}):"]
    for line in lines[first:]:
        if line.strip() and not line.startswith(f"{begin[1]} "):
            break
        found = _CALL.fullmatch(line)
        if found and _is_kernel(found[1], defined):
            line = f"{line}; {_MARK}({len(names)})"  # noqa: PLW2901
            names.append(found[1])
        code.append(line)
    try:
        module = compile("\n".join(code), function.__code__.co_filename, "exec")
    except (SyntaxError, ValueError):
        raise NotDividedError("its code has an unknown form") from None
    (inner,) = (each for each in module.co_consts if isinstance(each, CodeType))
    return names, FunctionType(inner, function.__globals__)


def _is_kernel(name: str, defined: set[str]) -> bool:
    if name.startswith(_TORCHS_OWN):
        return not name.endswith(_ALLOCATES)
    return name in defined


_RUN: Final = "what is called"


def _template(self: Any, args: Any) -> Any:
    run: Any = "what is called"
    return run(self, args)


def _calling(original: CodeType, run: Callable[[Any, Any], Any]) -> CodeType:
    """The code of a function that calls `run`, which is a constant of it: a name would
    have to be in the wrapper as long as any thread runs the code."""
    code = _template.__code__
    constants = tuple(run if each == _RUN else each for each in code.co_consts)
    return code.replace(
        co_consts=constants,
        co_name=original.co_name,
        co_filename=original.co_filename,
        co_firstlineno=original.co_firstlineno,
    )
