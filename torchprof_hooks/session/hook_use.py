"""A hook serves one session at a time."""

from __future__ import annotations

import threading
import weakref
from typing import NamedTuple, Protocol

from torchprof_hooks.session.session_hook import SessionHook


class User(Protocol):
    """Something that uses hooks: a session, or a hook that is entered by itself.

    is_using: whether it uses them now. An interrupt may keep a user from calling
        `release`, so this decides.
    """

    @property
    def is_using(self) -> bool: ...


class _Use(NamedTuple):
    hook: weakref.ref[SessionHook]
    user: weakref.ref[User]

    def is_of(self, hook: SessionHook) -> bool:
        """Whether `hook` is in use."""
        user = self.user()
        return self.hook() is hook and user is not None and user.is_using


_lock = threading.Lock()
#: By identity: hooks may be equal without being the same.
_in_use: dict[int, _Use] = {}


def occupy(hooks: tuple[SessionHook, ...], user: User) -> None:
    """Take hooks into use.

    Raises:
        RuntimeError: one of them is in use already. Then none of them is taken.
    """
    with _lock:
        for position, hook in enumerate(hooks):
            use = _in_use.get(id(hook))
            is_in_use = use is not None and use.is_of(hook)
            if is_in_use or any(other is hook for other in hooks[:position]):
                raise RuntimeError(
                    f"{hook!r} is in use by another session, or twice in this one: "
                    "make a hook for each"
                )
        for hook in hooks:
            _in_use[id(hook)] = _Use(weakref.ref(hook), weakref.ref(user))


def release(hooks: tuple[SessionHook, ...]) -> None:
    """Let other sessions use these hooks."""
    with _lock:
        for hook in hooks:
            _in_use.pop(id(hook), None)
