"""Keeps torch.compile from compiling this package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Final

from torchprof_hooks.capture.torch_names.compiler import (
    is_compiler_loaded,
    keep_compiler_out_of,
)

_PACKAGE: Final = __name__.partition(".")[0]

#: The modules of ours that were exempted, and how many modules there were in all by
#: then: looking through them takes longer than entering a hook may.
_exempted: set[str] = set()
_modules_seen = 0


def exempt_from_compilation() -> None:
    """Have torch.compile leave the code of this package alone, if it is in use.

    Where it gives up on a function of the user's, it goes on to compile whatever that
    calls, piece by piece: our hooks too, and the functions that are measured in them.
    """
    global _modules_seen  # noqa: PLW0603
    if not is_compiler_loaded() or len(sys.modules) == _modules_seen:
        return
    _modules_seen = len(sys.modules)
    ours = {name: m for name, m in sys.modules.items() if name.startswith(_PACKAGE)}
    for name in ours.keys() - _exempted:
        keep_compiler_out_of(_code_of(ours[name]))
        _exempted.add(name)


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
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
