"""Private names of custom autograd Functions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch.autograd import Function, function

from torchprof_hooks.capture.torch_names import Canary

Run = Callable[..., Any]


class Around(Protocol):
    """Goes around one application of a custom Function."""

    def __call__(self, run: Run, node: Any) -> Run:
        """What is called in place of ``run(*inputs)``, which does all the work.

        node: the autograd node of the application if that has been made before; None
            where `run` makes it.
        """


#: Given a class, returns what goes around an application of it; None if nothing does.
Listener = Callable[[Any], Around | None]

#: The class whose ``apply`` all ``apply`` of custom Functions end in, one level deeper
#: than the public class. None where torch has no such class: custom Functions are then
#: seen in backward only, by the names of their nodes.
_BASE: Final[Any] = getattr(function, "_SingleLevelFunction", None)
#: From torch 2.15 on, all of ``apply`` is one function of C++ that both classes have.
_APPLY: Final[Any] = vars(Function).get("apply")
_IS_NATIVE: Final = not isinstance(_APPLY, classmethod)
#: The class of contexts (``ctx``), and the metaclass of Functions. Without them,
#: applications in C++ are seen only where ``apply`` is looked up for each of them.
_CONTEXT: Final[Any] = getattr(function, "BackwardCFunction", None)
_META: Final[Any] = getattr(function, "FunctionMeta", None)


class _Begun(NamedTuple):
    """An application that begins in C++: its context has been made."""

    cls: Any
    context: Any
    around: Around


class _Thread(threading.local):
    """What one thread is doing.

    announced: the class that we are about to apply, until its context is made.
    begun: an application that did not come through us, until C++ reads ``forward``.
    set_up: the class of which we have called ``setup_context`` before C++ reads it.
    """

    announced: Any = None
    begun: _Begun | None = None
    set_up: Any = None


class FunctionApplications:
    """Knows of each application of a custom autograd Function, while it listens.

    Programs keep ``MyFunction.apply`` under names of their own, maybe since before we
    came. An ``apply`` in Python ends in a function that can be replaced. One in C++
    cannot be; but it makes a context first, and then reads ``forward`` and
    ``setup_context`` of the class, which can be seen. There, gradients are disabled,
    and outputs are not a part of the graph yet.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._is_on = False
        self._thread = _Thread()
        #: What replaces torch's attributes while we listen: class, name, value.
        self._replacements = list(self._made())

    def start(self) -> None:
        """Listen from now on, if this torch lets us."""
        if CUSTOM_FUNCTIONS.works():
            self.start_unchecked()

    def start_unchecked(self) -> None:
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
            return self._apply(cls, args, kwargs)

        if _BASE is not None:
            yield _BASE, "apply", classmethod(apply)
        if _IS_NATIVE:
            yield from self._made_for_native()

    def _made_for_native(self) -> Iterator[tuple[Any, str, Any]]:
        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_transformed():  # torch applies a class that it makes of this one
                return _apply_unseen(cls, args, kwargs)
            return self._apply(cls, args, kwargs)

        def context_made(context: Any) -> None:
            self._context_made(context)

        def read(cls: Any, name: str) -> Any:
            return self._read(cls, name, type.__getattribute__(cls, name))

        yield Function, "apply", classmethod(apply)
        if _CONTEXT is not None and _META is not None:
            yield _CONTEXT, "__init__", context_made
            yield _META, "__getattribute__", read

    def _around(self, cls: Any) -> Around | None:
        return self._listener(cls) if self._is_on else None

    def _apply(self, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        around = self._around(cls)
        run: Run = partial(self._run, cls)
        if around is not None:
            run = around(run, None)
        return run(*args, **kwargs)

    def _run(self, cls: Any, *args: Any, **kwargs: Any) -> Any:
        thread = self._thread
        before, thread.announced = thread.announced, cls
        try:
            return _apply_unseen(cls, args, kwargs)
        finally:
            thread.announced = before

    def _context_made(self, context: Any) -> None:
        thread = self._thread
        cls = getattr(type(context), "_forward_cls", None)
        thread.begun = thread.set_up = None
        if thread.announced is cls:
            thread.announced = None  # what `forward` applies is not announced
            return
        around = self._around(cls)
        if around is not None:
            thread.begun = _Begun(cls, context, around)

    def _read(self, cls: Any, name: str, value: Any) -> Any:
        thread = self._thread
        if name == "forward" and thread.begun is not None and thread.begun.cls is cls:
            begun, thread.begun = thread.begun, None
            return partial(self._forward, begun, value)
        if name == "setup_context" and thread.set_up is cls:
            thread.set_up = None
            return _do_nothing
        return value

    def _forward(self, begun: _Begun, forward: Run, *inputs: Any) -> Any:
        """In place of the `forward` of an application that begins in C++. By now, the
        context is a node."""
        context = begun.context
        set_up = begun.cls.setup_context
        if set_up is getattr(_BASE, "setup_context", None):  # not defined
            run = partial(forward, context)
            return begun.around(run, context)(*inputs[1:])

        def run_and_set_up(*inputs: Any) -> Any:
            outputs = forward(*inputs)
            set_up(context, inputs, outputs)
            return outputs

        outputs = begun.around(run_and_set_up, context)(*inputs)
        self._thread.set_up = begun.cls
        return outputs


def _apply_unseen(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `FunctionApplications` replaces."""
    if _IS_NATIVE:
        return _APPLY.__get__(None, cls)(*args, **kwargs)
    return super(_BASE, cls).apply(*args, **kwargs)


def _is_transformed() -> bool:
    """Whether ``torch.func`` transforms what this thread does. Assumes not, if torch
    does not say."""
    ask = getattr(torch._C, "_are_functorch_transforms_active", None)
    return ask is not None and bool(ask())


def _do_nothing(context: Any, inputs: Any, output: Any) -> None:
    """In place of a ``setup_context`` that has been called already."""


def _sees_applications() -> bool:
    """Whether an application is seen exactly once, however ``apply`` was looked up."""
    seen: list[str] = []

    class Applied(Function):
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            seen.append("forward")
            return value.clone()

    def around(run: Run, node: Any) -> Run:
        seen.append("around")
        return run

    kept: Run = Applied.apply
    value = torch.ones(1, device="cpu")
    applications = FunctionApplications(lambda cls: around if cls is Applied else None)
    applications.start_unchecked()
    try:
        kept(value)
        looked_up: Run = Applied.apply
        looked_up(value)
    finally:
        applications.stop()
    kept(value)
    return seen == 2 * ["around", "forward"] + ["forward"]


#: Without it, custom Functions are seen in backward only, by the names of their nodes.
CUSTOM_FUNCTIONS: Final = Canary(
    "custom autograd Functions",
    ("_SingleLevelFunction.apply", "BackwardCFunction", "FunctionMeta"),
    _sees_applications,
)
