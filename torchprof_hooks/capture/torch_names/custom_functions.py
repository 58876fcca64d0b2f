"""Private names of custom autograd Functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
from torch.autograd import Function, function

Run = Callable[..., Any]
#: Wraps `run`, which does all the work of applying a custom Function: returns what is
#: called in its place.
Around = Callable[[Run], Run]
#: Given a class, returns the wrapper for an application of it; None: there is none.
Listener = Callable[[Any], Around | None]

#: The base class of the public class, in whose ``apply`` all ``apply`` of custom
#: Functions end. None where torch has no such class: then we see custom Functions in
#: backward only, by the names of their nodes.
_BASE: Final[Any] = getattr(function, "_SingleLevelFunction", None)
#: From torch 2.15 on, all of ``apply`` is one function of C++ that both classes have.
_APPLY: Final[Any] = vars(Function).get("apply")
_IS_NATIVE: Final = not isinstance(_APPLY, classmethod)


class FunctionApplications:
    """Sees each application of a custom autograd Function, while it listens.

    An ``apply`` in Python ends in a function that we can replace, whatever name a
    program calls it by. If ``apply`` is in C++, we see calls of it that was looked up
    while we listen.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._is_on = False
        #: What replaces torch's attributes while we listen: class, name, value.
        self._replacements = list(self._made())

    def start(self) -> None:
        """Listen from now on."""
        self._is_on = True
        for owner, name, value in self._replacements:
            setattr(owner, name, value)

    def stop(self) -> None:
        """Do not listen any longer."""
        self._is_on = False
        for owner, name, value in self._replacements:
            if vars(owner).get(name) is not value:
                continue
            if owner is Function:
                setattr(owner, name, _APPLY)
            else:
                delattr(owner, name)

    def _made(self) -> Iterator[tuple[Any, str, Any]]:
        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if _IS_NATIVE and _is_transformed():
                return _original_apply(cls, args, kwargs)  # applies another class
            run: Run = partial(_run, cls)
            around = self._listener(cls) if self._is_on else None
            return (run if around is None else around(run))(*args, **kwargs)

        if _BASE is not None:
            yield _BASE, "apply", classmethod(apply)
        if _IS_NATIVE:
            yield Function, "apply", classmethod(apply)


def _run(cls: Any, *args: Any, **kwargs: Any) -> Any:
    return _original_apply(cls, args, kwargs)


def _original_apply(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Torch's own ``apply``, which `FunctionApplications` replaces."""
    if _IS_NATIVE:
        return _APPLY.__get__(None, cls)(*args, **kwargs)
    return super(_BASE, cls).apply(*args, **kwargs)


def _is_transformed() -> bool:
    """Whether ``torch.func`` transforms what this thread does. Assumes not, if torch
    does not say."""
    ask = getattr(torch._C, "_are_functorch_transforms_active", None)
    return ask is not None and bool(ask())
