"""Private names of ``torch.nn`` and ``torch.optim``."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, Final, cast

import torch

from torchprof_hooks.capture.torch_names.place import Place


class _OpenRegions(threading.local):
    """The regions that a thread is in, outermost first, each with the number of calls
    around it."""

    def __init__(self) -> None:
        self.entered: list[tuple[int, torch.nn.Module]] = []


_open_regions: Final = _OpenRegions()


def begin_region(module: torch.nn.Module) -> None:
    """Show hooks that a call of `module` begins, and goes on until `end_region`: a
    block of code in place of a forward. Where torch keeps other tables of hooks, they
    do not see it."""
    entered = _open_regions.entered
    entered.append((len(_owners_on_stack()), module))
    try:
        for number, hook in _hooks_of_call(module, "_forward_pre_hooks"):
            if number in vars(module).get("_forward_pre_hooks_with_kwargs", ()):
                hook(module, (), {})
            else:
                hook(module, ())
    except BaseException:
        entered.pop()
        raise


def end_region(module: torch.nn.Module, by_exception: bool) -> None:
    """Show hooks that what `begin_region` has begun is over.

    by_exception: whether an exception is the reason; of that, torch tells only hooks
        that ask for it.
    """
    settings = {**vars(torch.nn.modules.module), **vars(module)}
    prefix = "_global_forward_hooks", "_forward_hooks"
    with_kwargs, always = (
        {number for name in prefix for number in settings.get(name + kind, ())}
        for kind in ("_with_kwargs", "_always_called")
    )
    try:
        for number, hook in _hooks_of_call(module, "_forward_hooks"):
            if number in always or not by_exception:
                kwargs: tuple[Any, ...] = ({},) if number in with_kwargs else ()
                hook(module, (), *kwargs, None)
    finally:
        _open_regions.entered.pop()


def _hooks_of_call(module: torch.nn.Module, table: str) -> list[tuple[int, Any]]:
    """Hooks on all modules, and on this one."""
    on_all = vars(torch.nn.modules.module).get(f"_global{table}", {})
    return [*on_all.items(), *vars(module).get(table, {}).items()]


def caller_kwargs() -> dict[str, Any]:
    """Keyword arguments of the module call whose *global* forward pre-hook is running.

    Global pre-hooks are not given them, so they are read from the frame of
    ``torch.nn.Module._call_impl``. If torch arranges that differently: no keywords.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is begin_region.__code__:
            break
        if frame.f_code.co_filename == _MODULE_FILE and "kwargs" in frame.f_locals:
            return dict(frame.f_locals["kwargs"])
        frame = frame.f_back
    return {}


def owners_on_stack() -> list[int]:
    """Ids of the modules, optimizers, data loaders and iterators of these whose call is
    on this thread's Python stack, outermost first."""
    return [id(owner) for owner in _owners_on_stack()]


def is_loading_on_stack() -> bool:
    """Whether this thread is loading data: whether one of the methods that we put in
    place of torch's is on its Python stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "load_measured" and code.co_filename == _LOADERS_FILE:
            return True
        frame = frame.f_back
    return False


def modules_on_stack() -> list[torch.nn.Module]:
    """The modules whose call is on this thread's Python stack, outermost first."""
    return [o for o in _owners_on_stack() if isinstance(o, torch.nn.Module)]


def is_module_call_on_stack() -> bool:
    """Whether the call of a module is on this thread's Python stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_call_impl" and code.co_filename == _MODULE_FILE:
            return True
        frame = frame.f_back
    return False


def _owners_on_stack() -> list[object]:
    owners: list[object] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        variable = _CALLING_CODE.get((code.co_name, code.co_filename))
        if variable is not None:
            owners.append(frame.f_locals.get(variable))
        frame = frame.f_back
    owners.reverse()
    for position, module in _open_regions.entered:  # of which no frame tells
        owners.insert(position, module)
    return owners


_MODULE_FILE = torch.nn.Module.__call__.__code__.co_filename

_LOADERS_FILE = str(Path(__file__).parents[1] / "attach" / "loaders.py")

_OPTIMIZER_FILE = torch.optim.Optimizer.profile_hook_step.__code__.co_filename

#: Functions that call what an owner does, and the variable that holds the owner. The
#: last one is ours, in place of methods of torch.
_CALLING_CODE = {
    ("_call_impl", _MODULE_FILE): "self",
    ("wrapper", _OPTIMIZER_FILE): "self",
    ("load_measured", _LOADERS_FILE): "source",
}


def pre_hooks_of(module: torch.nn.Module) -> list[Any]:
    """The forward pre-hooks in a module's own table."""
    return list(module._forward_pre_hooks.values())


def own_hook_number(module: torch.nn.Module, hook: Any) -> int | None:
    """The number of `hook` in a module's own tables, None if it is not there."""
    for name in _OWN_HOOK_TABLES:
        for number, known in list(vars(module).get(name, {}).items()):
            if known is hook:
                return int(number)
    return None


def remove_own_hook(module: torch.nn.Module, hook: Any) -> None:
    """Take `hook` out of a module's own tables."""
    number = own_hook_number(module, hook)
    for name in _OWN_HOOK_TABLES:
        vars(module).get(name, {}).pop(number, None)


def original_module(module: torch.nn.Module) -> torch.nn.Module:
    """What a module made by ``torch.compile(module)`` was made of; others as is."""
    if type(module).__name__ == "OptimizedModule":
        return module._modules.get("_orig_mod") or module
    return module


def is_replica(module: torch.nn.Module) -> bool:
    """Whether `module` is a copy that DataParallel made for one forward pass."""
    return bool(vars(module).get("_is_replica", False))


def class_name(module: torch.nn.Module) -> str:
    """Name of the class that the user wrote, seen through compiled and scripted
    wrappers; the wrapper's own name where torch does not keep the other."""
    module = original_module(module)
    if isinstance(module, torch.jit.ScriptModule):
        return str(getattr(module, "original_name", type(module).__name__))
    return type(module).__name__


def hide_global_hooks(ids: set[int]) -> Callable[[set[int]], None]:
    """Take hooks on all modules, those with these numbers, out of torch's tables.
    Returns what puts back those of them that it is given, in their old places. Where
    torch keeps other tables, they stay where they are."""
    namespace = vars(torch.nn.modules.module)
    tables = [namespace[name] for name in _HOOK_TABLES if name in namespace]
    before = [list(table.items()) for table in tables]
    for table in tables:
        for number in ids & table.keys():
            del table[number]

    def show(wanted: set[int]) -> None:
        for table, hooks in zip(tables, before, strict=True):
            known = [number for number, _ in hooks]
            added = [number for number in table if number not in known]
            table.update((n, hook) for n, hook in hooks if n in wanted & ids)
            # Moved one by one: at no moment does another thread miss one of the user's.
            for number in (*known, *added):
                if number in table:
                    table.move_to_end(number)

    return show


def remove_global_hooks(hooks: Sequence[Any]) -> None:
    """Take these out of the tables of hooks on all modules, wherever they are."""
    namespace = vars(torch.nn.modules.module)
    tables = [namespace[name] for name in _HOOK_TABLES if name in namespace]
    for number in global_hook_numbers(hooks):
        for table in (*tables, *_settings_of_hooks()):
            table.pop(number, None)


def global_hook_numbers(hooks: Sequence[Any]) -> set[int]:
    """The numbers under which torch has these hooks on all modules. None where it keeps
    other tables."""
    namespace = vars(torch.nn.modules.module)
    return {
        number
        for name in _HOOK_TABLES
        for number, hook in list(namespace.get(name, {}).items())
        if any(hook is ours for ours in hooks)
    }


def _settings_of_hooks() -> list[dict[int, bool]]:
    """What torch keeps of hooks, by their numbers, besides these themselves."""
    namespace = vars(torch.nn.modules.module)
    return [namespace[name] for name in _HOOK_SETTINGS if name in namespace]


def check_for_global_hooks() -> Place:
    """Where torch.compile's modules ask whether there are hooks on all modules, to warn
    of them. Where torch asks in another way, users may see that warning."""
    return Place(torch.nn.modules.module, "_has_any_global_hook")


def has_other_global_hooks(numbers: set[int]) -> bool:
    """Whether there are hooks on all modules but those with these numbers."""
    namespace = vars(torch.nn.modules.module)
    tables = (*_HOOK_TABLES, *_HOOK_SETTINGS, *_BACKWARD_TABLES)
    return any(namespace.get(name, {}).keys() - numbers for name in tables)


def is_optimizer_hook(hook: Any) -> bool:
    """Whether `hook` is on all optimizers. Assumes not where torch keeps other
    tables."""
    tables = _optimizer_tables()
    return any(hook is known for table in tables for known in table.values())


def remove_optimizer_hooks(hooks: Sequence[Any]) -> None:
    """Take these hooks off all optimizers."""
    for table in _optimizer_tables():
        for number, known in list(table.items()):
            if any(known is hook for hook in hooks):
                table.pop(number, None)


def _optimizer_tables() -> list[dict[int, Any]]:
    # There is no such module any more when the interpreter is ending.
    module = sys.modules.get(torch.optim.Optimizer.__module__)
    namespace = {} if module is None else vars(module)
    return [namespace[name] for name in _OPTIMIZER_TABLES if name in namespace]


def call_without_global_hooks() -> Callable[..., Any]:
    """A method for modules of our own, in place of ``torch.nn.Module._call_impl``, that
    does the same but finds torch's tables of hooks on all modules empty: other threads
    may need what is in there at the same time. Where the program, or torch, has put
    something else in its place, that is called as it is."""
    original: Any = torch.nn.Module._call_impl
    code = getattr(original, "__code__", None)
    if code is None or code.co_filename != _MODULE_FILE or original.__closure__:
        return cast("Callable[..., Any]", original)
    names = original.__globals__
    tables = [
        n for n in names if n.startswith("_global_") and isinstance(names[n], dict)
    ]
    # The interpreter keeps what it learns of a function's globals with its code, which
    # is a copy, too.
    return FunctionType(code.replace(), {**names, **{name: {} for name in tables}})


def hide_hooks_of(
    module: torch.nn.Module, numbers: Collection[int]
) -> Callable[[], None]:
    """Take hooks with these numbers out of the tables of `module` and all in it.
    Returns what puts them back, in their old places.
    """
    before: list[tuple[dict[int, Any], list[tuple[int, Any]]]] = []
    for each in module.modules():
        for name in _OWN_HOOK_TABLES:
            table = vars(each).get(name, {})
            if any(number in table for number in numbers):
                before.append((table, list(table.items())))
                for number in numbers:
                    table.pop(number, None)

    def show() -> None:
        for table, hooks in before:
            known = {number for number, _ in hooks}
            added = [(n, hook) for n, hook in table.items() if n not in known]
            kept = [(n, h) for n, h in hooks if n in numbers or n in table]
            table.clear()
            table.update([*kept, *added])

    return show


_OWN_HOOK_TABLES = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_always_called",
)
_HOOK_TABLES = ("_global_forward_pre_hooks", "_global_forward_hooks")
_HOOK_SETTINGS = (
    "_global_forward_hooks_always_called",
    "_global_forward_hooks_with_kwargs",
)
_BACKWARD_TABLES = ("_global_backward_pre_hooks", "_global_backward_hooks")
_OPTIMIZER_TABLES = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
