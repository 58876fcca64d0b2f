"""Shows calls of modules to whoever subscribes to them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from torchprof_hooks.capture.attach.attachments import Attachment
from torchprof_hooks.capture.core import CORE, Cursor, Interceptor
from torchprof_hooks.capture.torch_names.hook_tables import (
    global_hook_numbers,
    hide_global_hooks,
    remove_global_hooks,
)
from torchprof_hooks.capture.torch_names.module_calls import (
    no_implementation,
    place_of_implementation,
)


class Subscription:
    """Is shown module calls of the process.

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
    own implementation. Hooks on all modules do that instead with the reference core,
    or if torch has no such place, or somebody else has taken it.

    The interceptor stays in its place, where it shows calls to nobody in 13 ns or so:
    each change of `torch.nn.Module` empties Python's caches of what is in all classes
    of modules, and Python 3.13 gives up caching for a class after a thousand changes.

    place: that place; None: there is none.
    uses_hooks: whether hooks are needed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._interceptor = Interceptor(no_implementation())
        self.place = None if CORE.module is None else place_of_implementation()
        self.uses_hooks = self.place is None
        self._hooks = self._interceptor.forward_pre, self._interceptor.forward_post
        self._handles: list[RemovableHandle] = []
        self._hiding: set[int] = set()

    @property
    def numbers(self) -> set[int]:
        """The numbers of the hooks in torch's tables, if there are any."""
        known = {handle.id for handle in self._handles}
        return known | global_hook_numbers(self._hooks)

    def put_on(self) -> None:
        found = None if self.place is None else self.place.read()
        self.uses_hooks = self.place is None or found not in (None, self._interceptor)
        if self.uses_hooks:
            self._put_on_hooks()
        elif found is None and self.place is not None:
            self.place.write(self._interceptor)

    def _put_on_hooks(self) -> None:
        """Put the pair into torch's tables, as far as it is not there."""
        pre, post = self._hooks
        if len(self._handles) == len(self._hooks):
            return
        if not global_hook_numbers([pre]):
            self._handles.append(register_module_forward_pre_hook(pre))
        if not global_hook_numbers([post]):
            # always_call: a forward that raises closes its call all the same.
            handle = register_module_forward_hook(post, always_call=True)
            self._handles.append(handle)

    def take_off(self) -> bool:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        remove_global_hooks(self._hooks)  # whose handles an interrupt has lost
        return True

    def users_changed(self) -> None:
        """Show modules to the users that there are now, and to their cursors."""
        shown: object = None
        while shown != (to_show := self._to_show()):  # other threads change them, too
            self._interceptor.show_to(*to_show)
            shown = to_show

    def _to_show(self) -> tuple[tuple[Cursor, ...], Callable[..., None] | None]:
        users: list[Subscription] = [] if self._hiding else self.users
        cursors = tuple(cursor for user in users for cursor in user.cursors)
        is_watched = any(user.watches for user in users)
        return cursors, self._watch if is_watched else None

    def _watch(self, module: torch.nn.Module, args: Any) -> None:
        for user in self.users:
            if user.watches:
                user.watch(module, args)

    def hide(self, hider: object) -> Callable[[], None]:
        """Show modules to nobody, and take our hooks out of torch's tables, until the
        returned function is called."""
        show_hooks = hide_global_hooks(self.numbers)
        self._hiding.add(id(hider))
        self.users_changed()

        def show() -> None:
            self._hiding.discard(id(hider))
            self.users_changed()
            show_hooks(self.numbers)

        return show


@cache
def interception() -> Interception:
    """The one there is. Made when it is first needed, as making it calls a module on
    trial."""
    return Interception()
