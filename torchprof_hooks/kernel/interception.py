"""Shows calls of modules to whoever subscribes to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from torchprof_hooks.kernel.attachments import Attachment
from torchprof_hooks.kernel.core import CORE, Cursor, Interceptor
from torchprof_hooks.kernel.torch_names.modules import (
    PLACE_OF_IMPLEMENTATION,
    no_implementation,
)


class Subscription:
    """Is notified of module calls of the process.

    cursors: those that follow the calls.
    watches: whether `watch` is called before each call, in the thread that makes it.
    """

    cursors: tuple[Cursor, ...] = ()
    watches = False

    def watch(self, module: torch.nn.Module, args: Any) -> None:
        """A call of `module` is about to begin; cursors that are added now see it."""


class Interception(Attachment):
    """Shows all module calls of the process to its users, `Subscription`s: by an
    interceptor, at the place where torch looks for what to call in place of a module's
    own implementation. While somebody else has taken that place, nobody is notified of
    calls.

    The native interceptor stays in its place, where it shows calls to nobody in 13 ns
    or so: each change of `torch.nn.Module` empties Python's caches of what is in all
    classes of modules, and Python 3.13 gives up caching for a class after a thousand
    changes. That of the reference core, which takes longer, goes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._interceptor = Interceptor(no_implementation())

    @property
    def is_kept_out(self) -> bool:
        """Whether somebody else has taken the place."""
        return PLACE_OF_IMPLEMENTATION.read() not in (None, self._interceptor)

    def put_on(self) -> None:
        if PLACE_OF_IMPLEMENTATION.read() is None:
            PLACE_OF_IMPLEMENTATION.write(self._interceptor)

    def take_off(self) -> bool:
        is_there = PLACE_OF_IMPLEMENTATION.read() is self._interceptor
        if is_there and CORE.module is None:
            PLACE_OF_IMPLEMENTATION.write(None)
        return True

    def users_changed(self) -> None:
        """Show modules to the users that there are now, and to their cursors."""
        shown: object = None
        while shown != (to_show := self._to_show()):  # other threads change them, too
            self._interceptor.notify(*to_show)
            shown = to_show

    def _to_show(self) -> tuple[tuple[Cursor, ...], Callable[..., None] | None]:
        users: list[Subscription] = self.users
        cursors = tuple(cursor for user in users for cursor in user.cursors)
        is_watched = any(user.watches for user in users)
        return cursors, self._watch if is_watched else None

    def _watch(self, module: torch.nn.Module, args: Any) -> None:
        for user in self.users:
            if user.watches:
                user.watch(module, args)


interception: Final = Interception()
