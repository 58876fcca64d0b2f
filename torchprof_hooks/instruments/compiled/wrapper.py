"""The code that Inductor has written for a graph, with marks behind kernel calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from torchprof_hooks.instruments.compiled.kernel_map import Kernel, KernelMap, map_of
from torchprof_hooks.kernel.torch_names.inductor import call_of, partitions_of

#: Called with the number of each kernel call, once that is done.
Mark = Callable[[int], object]


class NotDividedError(Exception):
    """Why a wrapper stays one line."""


#: Why, if its function is not Inductor's.
CHANGED: Final = "its code is in C++, or was changed by others"


class WrapperFunction:
    """A function of a wrapper, which can be marked: the one that runs all kernels, or a
    partition of these, which torch may capture in a CUDA graph.

    kernels: its kernel calls, in the order of the code. A call of a partition is one
        which belongs to no module.
    known: whom those of the wrapper belong to; None if nobody knows.
    partitions: what it calls.
    triton: names of Triton's kernels, by those that the code calls them by.
    in_order: whether a device runs nothing but its kernel calls, one by one.
    runs: how often it was called.
    marked: the function, with one more argument, a `Mark`.
    """

    def __init__(
        self, function: FunctionType, marked: Callable[..., Any], run: Run
    ) -> None:
        self.kernels: list[Kernel] = []
        self.known: KernelMap | None = None
        self.partitions: list[WrapperFunction] = []
        self.triton: dict[str, str] = {}
        self.in_order = True
        self.runs = 0
        self.marked = marked
        self._function, self._original = function, function.__code__
        self._running = _calling(self._original, lambda *args: run(self, *args))

    def put_on(self) -> bool:
        """Have `run` called; False: another tool has changed the function."""
        if self._function.__code__ is self._original:
            self._function.__code__ = self._running
        return self._function.__code__ is self._running

    def take_off(self) -> None:
        """The function is again as torch has made it."""
        if self._function.__code__ is self._running:
            self._function.__code__ = self._original

    def forget(self) -> None:
        """Take it off for good. Python does not look for garbage in code, and this
        object is in it."""
        self.take_off()
        self._running = self._original


#: Called in place of a function of a wrapper while marks are on, with the function's
#: arguments; it calls `marked` with these and a `Mark`.
Run = Callable[..., Any]


def functions_of(module: ModuleType, run: Run) -> list[WrapperFunction]:
    """The functions of a wrapper.

    Raises:
        NotDividedError: they cannot be marked.
    """
    call, known = call_of(module), map_of(module.__file__)
    if call is None:
        raise NotDividedError(CHANGED)
    lines = _source_of(module)
    matches = (found for found in map(_DEFINED.match, lines) if found)
    defined = {found[1]: found[2] or found[1] for found in matches}
    functions = {"": call, **partitions_of(module)}
    marked = {name: _marked(lines, each, defined) for name, each in functions.items()}
    # Inductor names the kernels of a partition where that is called.
    order: list[tuple[str, str]] = []
    for name in marked[""][0]:
        if name in marked:
            order += [(name, kernel) for kernel in marked[name][0]]
        order.append(("", name))
    named = [name for _, name in order if name not in marked]
    if known is not None and [each.name for each in known.kernels] != named:
        raise NotDividedError("its kernel calls are not those that Inductor named")
    found = {n: WrapperFunction(f, marked[n][1], run) for n, f in functions.items()}
    kernels = iter(known.kernels if known else [Kernel(name, ()) for name in named])
    for function, name in order:
        kernel = Kernel(name, ((),)) if name in marked else next(kernels)
        found[function].kernels.append(kernel)
        found[function].partitions += [found[name]] if name in found else []
    for name, each in found.items():
        each.known, each.triton, each.in_order = known, defined, marked[name][2]
    return [*found.values()]


def _source_of(module: ModuleType) -> list[str]:
    try:
        return Path(str(module.__file__)).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        raise NotDividedError("its file is not there any more") from None


_DEFINED: Final = re.compile(r"(\w+) = async_compile\.(?:triton\('(\w+)')?")
#: A statement that calls something: its results, what is called, and Triton's launcher.
_CALL: Final = re.compile(r"\s+(?:[\w, ]+ = )?([A-Za-z_][\w.]*?)(?:\.run)?\(.*\)")
_CALLS_PARTITION: Final = re.compile(r"\s+\(.*\) = self\.partitions\[(\d+)\]\(\w+\)")
_TORCHS_OWN: Final = ("extern_kernels.", "torch.ops.", "aten.", "inductor_ops.")
#: Those that only give a view of memory.
_ALLOCATES: Final = ("_alloc_from_pool", "_reinterpret_tensor")
#: What runs beside kernel calls, such as filling memory for one; and other streams,
#: which exchanges have, too.
_BESIDE: Final = re.compile(
    r"\s+((?!aten\b)\w+\.\w+_\(|with \w+:|.*\b_c10d_functional\.)"
)
_DEFINES: Final = re.compile(r"( *)def (\w+)\(((?:self, )?args)\):")
_MARK: Final = "_torchprof_hooks_mark"


def _marked(
    lines: list[str], function: FunctionType, defined: Container[str]
) -> tuple[list[str], Callable[..., Any], bool]:
    """The names of kernels and partitions, in the order of their calls; the function
    with one more argument, a `Mark`; and `in_order`. Lines stay where they are, so that
    tracebacks are the same.

    defined: names of the kernels that Inductor has written.
    """
    first = function.__code__.co_firstlineno
    begin = _DEFINES.fullmatch(lines[first - 1]) if len(lines) >= first else None
    if begin is None:
        raise NotDividedError("its code is not as its file says")
    names: list[str] = []
    in_order = True
    code = [""] * (first - 1) + [f"def {begin[2]}({begin[3]}, {_MARK}):"]
    for line in lines[first:]:
        if line.strip() and not line.startswith(f"{begin[1]} "):
            break
        name = _called(line, defined)
        if name:
            line = f"{line}; {_MARK}({len(names)})"  # noqa: PLW2901
            names.append(name)
        in_order = in_order and not _BESIDE.match(line)
        code.append(line)
    try:
        module = compile("\n".join(code), function.__code__.co_filename, "exec")
    except (SyntaxError, ValueError):
        raise NotDividedError("its code has an unknown form") from None
    (inner,) = (each for each in module.co_consts if isinstance(each, CodeType))
    return names, FunctionType(inner, function.__globals__), in_order


def _called(line: str, defined: Container[str]) -> str:
    """The kernel or partition that a statement calls; "" if it calls none."""
    partition = _CALLS_PARTITION.fullmatch(line)
    if partition:
        return f"partition_{partition[1]}"
    found = _CALL.fullmatch(line)
    if not found:
        return ""
    name = found[1]
    is_own = name.startswith(_TORCHS_OWN) and not name.endswith(_ALLOCATES)
    return name if is_own or name in defined else ""


_RUN: Final = "what is called"


def _template(*args: Any) -> Any:
    run: Any = "what is called"
    return run(*args)


def _calling(original: CodeType, run: Callable[..., Any]) -> CodeType:
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
