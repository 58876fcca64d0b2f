"""Functions that can be measured from call to return."""

from __future__ import annotations

import inspect


def check_plain_function(function: object, caller: str) -> None:
    """Refuse what is not a plain function or method: the body of a generator or of a
    coroutine runs after its call has returned.

    Raises:
        TypeError: it is none. The message begins with `caller`.
    """
    if (
        isinstance(function, type)
        or not callable(function)
        or inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise TypeError(
            f"{caller} takes plain functions: function must be one, not {function!r}; "
            "use `with profile():` inside of it"
        )
