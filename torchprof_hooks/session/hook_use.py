"""A hook serves one session at a time."""

from __future__ import annotations

import threading
import weakref

from torchprof_hooks.session.session_hook import SessionHook

_lock = threading.Lock()
#: By identity: hooks may be equal without being the same.
_in_use: dict[int, weakref.ref[SessionHook]] = {}


def occupy(hooks: tuple[SessionHook, ...]) -> None:
    """Take hooks into use.

    Raises:
        RuntimeError: one is in use already; none has been taken then.
    """
    with _lock:
        for position, hook in enumerate(hooks):
            user = _in_use.get(id(hook))
            is_in_use = user is not None and user() is hook
            if is_in_use or any(other is hook for other in hooks[:position]):
                raise RuntimeError(
                    f"{hook!r} is in use by another session, or twice in this one: "
                    "make a hook for each"
                )
        _in_use.update({id(hook): weakref.ref(hook) for hook in hooks})


def release(hooks: tuple[SessionHook, ...]) -> None:
    """They are free for another session."""
    with _lock:
        for hook in hooks:
            _in_use.pop(id(hook), None)
