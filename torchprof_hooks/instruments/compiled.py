"""Hides our code from torch.compile, and hooks from torch.jit.script, and is told when
torch.compile compiles."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from torchprof_hooks.kernel.attachments import Layer, Patch, attachments
from torchprof_hooks.kernel.torch_names.compiler import (
    compilation_context,
    is_compiler_loaded,
    keep_compiler_out_of,
    script_module_maker,
    with_inner,
)
from torchprof_hooks.kernel.torch_names.modules import hide_hooks_of
from torchprof_hooks.kernel.torch_names.place import Function
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.profiles.names import COMPILING_NAME

if TYPE_CHECKING:
    from torchprof_hooks.kernel.tracker import Tracker

_PACKAGE: Final = __name__.partition(".")[0]

#: The modules of ours that were exempted, and how many modules Python had then: if it
#: has no more, we do not search them again, which would take too long for a hook.
_exempted: set[str] = set()
_modules_seen = 0


def exempt_from_compilation() -> None:
    """Have torch.compile leave the code of this package alone, if it is in use.

    Where it gives up on a function of the user's, it compiles each function that this
    one calls: our hooks too, and the functions that are measured in them.
    """
    global _modules_seen  # noqa: PLW0603
    if not is_compiler_loaded() or len(sys.modules) == _modules_seen:
        return
    modules = sys.modules.copy()  # other threads may import some
    ours = {name: m for name, m in modules.items() if name.startswith(_PACKAGE)}
    for name in ours.keys() - _exempted:
        keep_compiler_out_of(_code_of(ours[name]))
        _exempted.add(name)
    _modules_seen = len(modules)  # last: an interrupt leaves some to be exempted


def _code_of(module: ModuleType) -> Iterator[CodeType]:
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, FunctionType):
            yield from with_inner(value.__code__)
        elif isinstance(value, type):
            for member in vars(value).values():
                method = member.fget if isinstance(member, property) else member
                function = getattr(method, "__func__", method)
                if isinstance(function, FunctionType):
                    yield from with_inner(function.__code__)


def watch_compiler() -> None:
    """Leave our code out, and be told of compilations: the program may have begun to
    use torch.compile."""
    exempt_from_compilation()
    attachments.renew(compilations)


def _make_compiling(original: Function, layer: Layer) -> Function:
    @contextmanager
    def install_callbacks(*args: Any, **kwargs: Any) -> Iterator[None]:
        begun: list[tuple[Tracker, Site]] = []
        for tracker in compilations.trackers_here() if layer.is_on else ():
            if tracker.site.phase != "compiling":
                site = tracker.entry_site(COMPILING_NAME, "compiling")
                site.is_region = True
                tracker.open_entry(site)
                begun.append((tracker, site))
        try:
            with original(*args, **kwargs):
                yield
        finally:
            for tracker, site in reversed(begun):
                tracker.leave_entry(site)

    return install_callbacks


def _make_scripting(original: Function, layer: Layer) -> Function:
    def create_script_module(nn_module: Any, *args: Any, **kwargs: Any) -> Any:
        if not layer.is_on:
            return original(nn_module, *args, **kwargs)
        numbers = {n for user in script_patch.users for n in user.numbers}
        show = hide_hooks_of(nn_module, numbers)
        try:
            return original(nn_module, *args, **kwargs)
        finally:
            show()

    return create_script_module


#: The context in which torch.compile compiles something, in the thread that waits for
#: it: the time is not that of the call that waits. Its users are trackers.
compilations: Final = Patch(compilation_context, _make_compiling)

#: TorchScript would compile the hooks of a module along with it, and cannot compile
#: ours: they are hidden while it looks for hooks. Its users are `ModuleSubscription`s.
script_patch: Final = Patch(script_module_maker, _make_scripting)
