"""Private names under which torch keeps hooks on one module, and on all optimizers.
Where torch keeps other tables, no hook is found in them."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

#: Hooks, or what torch knows of them, by their numbers, which are unique.
_Table = OrderedDict[int, Any]
_ON_ONE: Final = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_always_called",
)
_ON_OPTIMIZERS: Final = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


def hide_hooks_of(module: torch.nn.Module, numbers: set[int]) -> Callable[[], None]:
    """Take hooks with these numbers out of the tables of `module` and all in it.
    Returns what puts them back in their old places."""
    tables = [
        table
        for inner in module.modules()
        for table in _tables(inner, _ON_ONE)
        if numbers & table.keys()
    ]
    before = [list(table.items()) for table in tables]
    for table in tables:
        for number in numbers & table.keys():
            del table[number]

    def show() -> None:
        for table, hooks in zip(tables, before, strict=True):
            known = dict(hooks)
            added = [number for number in table if number not in known]
            table.update((n, known[n]) for n in numbers & known.keys())
            # Moved one by one, so that no other thread ever misses a hook of the user.
            for number in (*known, *added):
                if number in table:
                    table.move_to_end(number)

    return show


def is_optimizer_hook(hook: Any) -> bool:
    """Whether `hook` is on all optimizers."""
    return bool(_numbers(_optimizer_tables(), (hook,)))


def remove_optimizer_hooks(hooks: Iterable[Any]) -> None:
    """Take these hooks off all optimizers."""
    _remove(_optimizer_tables(), hooks)


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
