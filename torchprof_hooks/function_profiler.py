"""`profile_function`: a part of a program that reports show by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from torchprof_hooks.capture.callers import place_of_caller
from torchprof_hooks.capture.profiled_function import make_profiled_function
from torchprof_hooks.profiles.options import check_plain_function, check_text

P = ParamSpec("P")
R = TypeVar("R")


def profile_function(
    function: Callable[P, R], name: str | None = None
) -> Callable[P, R]:
    """Have reports show `function` by itself: like an outermost module, but with the
    backward passes, optimizer steps and data loading that happen in it.

    It is measured while something measures: the rest of the program does not change.

    Args:
        function: a plain function or method; also for use as a decorator.
        name: what it is called in reports; by default its own name.

    Raises:
        TypeError: `function` is not a plain function, or `name` is no text.

    Example:
        >>> train_step = torchprof_hooks.profile_function(train_step)
        >>> evaluate = torchprof_hooks.profile_function(evaluate, "evaluation")
    """
    check_plain_function("function", function, "with profile():")
    if name is None:
        name = getattr(function, "__name__", type(function).__name__)
    check_text("name", name)
    module = make_profiled_function(function, name, place_of_caller())

    @functools.wraps(function)
    def profiled(*args: P.args, **kwargs: P.kwargs) -> R:
        result: R = module(*args, **kwargs)
        return result

    return profiled
