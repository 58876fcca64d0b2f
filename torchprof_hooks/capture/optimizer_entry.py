"""Tells listeners when an optimizer steps."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from torchprof_hooks.capture.tracebacks import leave_out_our_frame

#: Where an optimizer's step has its closure: among its arguments, behind itself, or
#: under this name.
_POSITION: Final = 1
_NAME: Final = "closure"


class OptimizerListener(Protocol):
    """What can be told of steps.

    begin_closure: returns what ends it.
    """

    def optimizer_pre(self, optimizer: Any, args: Any, kwargs: Any) -> None: ...
    def optimizer_post(self, optimizer: Any, args: Any, kwargs: Any) -> None: ...
    def begin_closure(self) -> Callable[[], object]: ...


class OptimizerEntry:
    """One pair of hooks on all optimizers, for as long as anybody listens.

    Listeners may come and go at any time, also while they are told of a step: torch's
    own table of hooks must not change while torch goes through it, so that the pair is
    only removed outside of steps. What is called once in a step is not in the
    processor's caches by then, and takes ten times as long as it would otherwise: a
    listener that can do without the beginnings of steps should say so.

    What an optimizer calls to have the loss computed again, its closure, is code of the
    program's, not of the optimizer's; listeners are told of that too.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._listeners: tuple[OptimizerListener, ...] = ()
        self._told_of_beginnings: tuple[OptimizerListener, ...] = ()
        self._handles: list[RemovableHandle] = []
        self._telling = 0

    def add(self, listener: OptimizerListener) -> None:
        """Tell `listener` from now on, after those that came before it."""
        with self._lock:
            self._listeners = (*self._listeners, listener)
            self.tell_of_beginnings(listener, wanted=True)
            if not self._handles:
                self._handles = [
                    register_optimizer_step_pre_hook(self._pre),
                    register_optimizer_step_post_hook(self._post),
                ]

    def tell_of_beginnings(self, listener: OptimizerListener, wanted: bool) -> None:
        """Whether `listener` is told of them, and of closures; at first it is."""
        with self._lock:
            told = self._told_of_beginnings
            self._told_of_beginnings = tuple(
                other
                for other in self._listeners
                if (wanted if other is listener else other in told)
            )

    def remove(self, listener: OptimizerListener) -> None:
        """Undo `add`; whoever did not listen need not care."""
        with self._lock:
            self._listeners = tuple(
                other for other in self._listeners if other is not listener
            )
            self.tell_of_beginnings(listener, wanted=False)
            if not self._listeners and not self._telling:
                for handle in self._handles:
                    handle.remove()
                self._handles = []

    def _pre(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if is_dynamo_compiling() or not self._told_of_beginnings:
            return None
        self._telling += 1
        try:
            for listener in self._told_of_beginnings:
                listener.optimizer_pre(optimizer, args, kwargs)
        finally:
            self._telling -= 1
        return self._with_measured_closure(args, kwargs)

    def _post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_dynamo_compiling():
            return
        self._telling += 1
        try:
            for listener in self._listeners:
                listener.optimizer_post(optimizer, args, kwargs)
        finally:
            self._telling -= 1

    def _with_measured_closure(self, args: Any, kwargs: Any) -> Any:
        """The arguments of a step, if they have to be others; None to torch means that
        they stay."""
        if len(args) > _POSITION and callable(args[_POSITION]):
            closure = self._measured(args[_POSITION])
            return (*args[:_POSITION], closure, *args[_POSITION + 1 :]), kwargs
        if callable(kwargs.get(_NAME)):
            return args, {**kwargs, _NAME: self._measured(kwargs[_NAME])}
        return None

    def _measured(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(closure)
        def measured_closure(*args: Any, **kwargs: Any) -> Any:
            ends = [listener.begin_closure() for listener in self._told_of_beginnings]
            try:
                return closure(*args, **kwargs)
            except BaseException as error:
                leave_out_our_frame(error)
                raise
            finally:
                for end in reversed(ends):
                    end()

        return measured_closure


#: The one entry there is.
optimizer_entry = OptimizerEntry()
