"""`profile_function` and `region`, which give parts of a program their own rows in
reports."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import ParamSpec, TypeVar

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.kernel.module_names import make_profiled_function
from torchprof_hooks.kernel.torch_names.modules import (
    begin_region,
    end_region,
    place_of_caller,
)
from torchprof_hooks.profiles.options import check_plain_function, check_text

P = ParamSpec("P")
R = TypeVar("R")


def profile_function(
    function: Callable[P, R], name: str | None = None
) -> Callable[P, R]:
    """Give `function` a row of its own in reports: like an outermost module, but its
    backward passes, optimizer steps and data loading are inside of the row.

    Wrapping measures nothing by itself: calls count while a profiler or hook is active.

    Args:
        function: a plain function or method; `profile_function` is also a decorator.
        name: the name of the row; by default that of the function.

    Raises:
        TypeError: `function` is not a plain function, or `name` is not a string.
        ValueError: `name` is empty.

    Example:
        >>> train_step = torchprof_hooks.profile_function(train_step)
        >>> evaluate = torchprof_hooks.profile_function(evaluate, "evaluation")
    """
    check_plain_function("function", function)
    if name is None:
        name = getattr(function, "__name__", type(function).__name__)
    check_text("name", name)
    module = make_profiled_function(function, name, place_of_caller())

    @functools.wraps(function)
    def profiled(*args: P.args, **kwargs: P.kwargs) -> R:
        result: R = module(*args, **kwargs)
        return result

    return profiled


def region(name: str) -> AbstractContextManager[None]:
    """Give a block of code a row of its own in reports, as `profile_function` does for
    a function. All blocks with the same name share one row, wherever they are.

    The block has to be entered and left in one call of a module, in one thread, and
    outside of compiled code. It must not contain an ``await``, or a ``yield``, during
    which another task or generator enters a region.

    Args:
        name: what the block is called in reports.

    Raises:
        TypeError, ValueError: `name` is not a string, or is empty.
        RuntimeError: where the block begins, another task of asyncio is in a region; or
            where it ends, a region that began in it is still open.

    Example:
        >>> for batch in loader:
        ...     with torchprof_hooks.region("augmentation"):
        ...         batch = augment(batch)
        ...     train_step(batch)
    """
    check_text("name", name)
    return _Region(_module_of_region(name))


class _Region:
    """A block that hooks see as a call of `module`."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def __enter__(self) -> None:
        if not is_dynamo_compiling():
            begin_region(self._module)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not is_dynamo_compiling():
            end_region(self._module, by_exception=error is not None)


@functools.lru_cache(maxsize=1024)
def _module_of_region(name: str) -> torch.nn.Module:
    """The module that stands for regions of this name; cached, since each step enters
    the same regions again."""
    return make_profiled_function(int, name, place_of_caller())
