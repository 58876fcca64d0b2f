"""What hooks on modules and hooks on functions have in common."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakValueDictionary

from torchprof_hooks.kernel.attachments import attachments
from torchprof_hooks.kernel.subscriptions import TrackerSubscription
from torchprof_hooks.measure.uninterrupted import (
    enter_uninterrupted,
    leave_uninterrupted,
)

if TYPE_CHECKING:
    from torchprof_hooks.instruments.functions.callbacks import FollowedFunctions

Self = TypeVar("Self", bound="Hook")


class ThreadWide(threading.local):
    """The hooks of one kind that are active in a thread, by name."""

    def __init__(self) -> None:
        self.hooks: WeakValueDictionary[str, Hook] = WeakValueDictionary()


on_modules = ThreadWide()
on_functions = ThreadWide()


def check_free(name: str, taken: object) -> None:
    """Raise KeyError if a hook called `name` is there already."""
    if taken is not None:
        raise KeyError(
            f"hook {name!r} already exists: delete it first, or give this one "
            "another name"
        )


def check_known(name: str, subscriptions: Mapping[str, object]) -> None:
    """Raise KeyError, with the registered names, if `name` is none of them."""
    if name not in subscriptions:
        known = ", ".join(map(repr, subscriptions)) or "none"
        raise KeyError(f"no hook {name!r} here; the registered ones: {known}")


class _OfThread(threading.local):
    """What a hook has in a thread. subscription: has it notified of calls."""

    subscription: TrackerSubscription | FollowedFunctions | None = None
    is_entered = False


#: Attributes of hooks that copies do not get: they make their own when needed.
_OWN: Final = frozenset({"_threads", "_local", "_records", "_ranges"})


class Hook:
    """A hook that has a name, and is active for a thread or for one target."""

    #: The name under which the hook is registered.
    name: str = "Hook"
    #: The active hooks of this kind: on modules, or on functions.
    _thread_wide: ThreadWide

    def __getstate__(self) -> dict[str, Any]:
        """Copies, also pickled ones, get the options that users gave to the hook, but
        are not active anywhere, and have measured nothing."""
        return {name: value for name, value in vars(self).items() if name not in _OWN}

    def __enter__(self: Self) -> Self:
        """Activate the hook for all modules, or all functions, that this thread calls.

        Raises:
            KeyError: a hook of this name is active in this thread already.
        """
        attachments.retry_cleanup()
        active = self._thread_wide.hooks
        check_free(self.name, active.get(self.name))
        self.added(None)
        here = self._here
        subscription = here.subscription = here.subscription or self._new_subscription()

        def begin() -> None:
            active[self.name] = self
            here.is_entered = True
            subscription.open()

        enter_uninterrupted(begin, undo=lambda: self._leave(by_exception=True))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if not self._here.is_entered:
                raise RuntimeError(
                    f"hook {self.name!r} was not entered in this thread, or has been "
                    "left already"
                )
            self.deleted(None)
        finally:
            leave_uninterrupted(lambda: self._leave(error is not None))

    def _leave(self, by_exception: bool) -> None:
        here, active = self._here, self._thread_wide.hooks
        # Not by name: the user may have changed it.
        for name in [name for name, hook in active.items() if hook is self]:
            del active[name]
        if here.is_entered and here.subscription is not None:
            here.subscription.close(by_exception)
            here.is_entered = False

    def added(self, target: Any) -> None:
        """Called when the hook is registered: on `target`, or thread-wide (None)."""

    def deleted(self, target: Any) -> None:
        """Called when the hook is removed: from `target`, or thread-wide (None)."""

    def _new_subscription(self) -> TrackerSubscription | FollowedFunctions:
        """What is opened each time that the hook is entered in this thread."""
        raise NotImplementedError

    @property
    def _here(self) -> _OfThread:
        if self._local is None:
            self._local = _OfThread()
        return self._local

    # Not made in `__init__`, which subclasses need not call:
    _local: _OfThread | None = None
