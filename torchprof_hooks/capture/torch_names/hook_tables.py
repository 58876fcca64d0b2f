"""Private names under which torch keeps hooks: those on all modules, on one module, and
on all optimizers. Where torch keeps other tables, no hook is found in them."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from torchprof_hooks.capture.torch_names.place import Place

#: Hooks, or what torch knows of them, by their numbers, which are unique.
_Table = OrderedDict[int, Any]
#: Puts hidden hooks back in their old places: those whose numbers it is given.
Show = Callable[[set[int]], None]

_ON_ALL: Final = ("_global_forward_pre_hooks", "_global_forward_hooks")
_SETTINGS: Final = (
    "_global_forward_hooks_always_called",
    "_global_forward_hooks_with_kwargs",
)
_BACKWARD: Final = ("_global_backward_pre_hooks", "_global_backward_hooks")
_ON_ONE: Final = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_always_called",
)
_ON_OPTIMIZERS: Final = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


def global_hook_numbers(hooks: Iterable[Any]) -> set[int]:
    """The numbers under which torch has these hooks on all modules."""
    return _numbers(_global_tables(*_ON_ALL), hooks)


def remove_global_hooks(hooks: Iterable[Any]) -> None:
    """Take these hooks off all modules."""
    _remove(_global_tables(*_ON_ALL, *_SETTINGS), hooks)


def has_other_global_hooks(numbers: set[int]) -> bool:
    """Whether all modules have hooks other than those with these numbers."""
    tables = _global_tables(*_ON_ALL, *_SETTINGS, *_BACKWARD)
    return any(table.keys() - numbers for table in tables)


#: Where torch.compile's modules ask whether there are hooks on all modules, to warn of
#: them. If torch asks in another way, users may see that warning.
CHECK_FOR_GLOBAL_HOOKS: Final = Place(torch.nn.modules.module, "_has_any_global_hook")


def hide_global_hooks(numbers: set[int]) -> Show:
    """Take the hooks on all modules that have these numbers out of torch's tables."""
    return _hide(_global_tables(*_ON_ALL), numbers)


def hide_hooks_of(module: torch.nn.Module, numbers: set[int]) -> Show:
    """Take hooks with these numbers out of the tables of `module` and all in it."""
    inner = module.modules()
    return _hide([t for each in inner for t in _tables(each, _ON_ONE)], numbers)


def is_optimizer_hook(hook: Any) -> bool:
    """Whether `hook` is on all optimizers."""
    return bool(_numbers(_optimizer_tables(), (hook,)))


def remove_optimizer_hooks(hooks: Iterable[Any]) -> None:
    """Take these hooks off all optimizers."""
    _remove(_optimizer_tables(), hooks)


def _global_tables(*names: str) -> list[_Table]:
    return _tables(torch.nn.modules.module, names)


def _optimizer_tables() -> list[_Table]:
    # There is no such module any more when the interpreter is ending.
    module = sys.modules.get(torch.optim.Optimizer.__module__)
    return [] if module is None else _tables(module, _ON_OPTIMIZERS)


def _tables(holder: object, names: Iterable[str]) -> list[_Table]:
    """The tables by these names that `holder`, a module of Python or of torch, has."""
    held = vars(holder)
    return [held[name] for name in names if name in held]


def _numbers(tables: Iterable[_Table], hooks: Iterable[Any]) -> set[int]:
    return {
        number
        for table in tables
        for number, known in list(table.items())
        if any(known is hook for hook in hooks)
    }


def _remove(tables: list[_Table], hooks: Iterable[Any]) -> None:
    for number in _numbers(tables, hooks):
        for table in tables:
            table.pop(number, None)


def _hide(all_tables: list[_Table], numbers: set[int]) -> Show:
    tables = [table for table in all_tables if numbers & table.keys()]
    before = [list(table.items()) for table in tables]
    for table in tables:
        for number in numbers & table.keys():
            del table[number]

    def show(wanted: set[int]) -> None:
        for table, hooks in zip(tables, before, strict=True):
            known = [number for number, _ in hooks]
            added = [number for number in table if number not in known]
            table.update((n, hook) for n, hook in hooks if n in wanted & numbers)
            # Moved one by one, so that no other thread ever misses a hook of the user.
            for number in (*known, *added):
                if number in table:
                    table.move_to_end(number)

    return show
