"""Hooks on all modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from torchprof_hooks.capture.attach.attachments import Attachment, attachments
from torchprof_hooks.capture.core import CORE, Cursor, Seam
from torchprof_hooks.capture.torch_names.hook_tables import (
    global_hook_numbers,
    hide_global_hooks,
    remove_global_hooks,
)
from torchprof_hooks.capture.torch_names.module_calls import (
    no_implementation,
    place_of_implementation,
)
from torchprof_hooks.capture.torch_names.place import Function

#: Shows module calls again, to those hooks that are still there.
Show = Callable[[Iterable["AnyHooks"]], None]


class ModuleHooks(Attachment):
    """A pair of hooks that see every module call of the process.

    A process without any runs exactly as without this package: torch takes the short
    way through module calls as soon as its tables of global hooks are empty.
    """

    def __init__(self, pre: Function, post: Function) -> None:
        super().__init__()
        self._hooks = pre, post
        self._handles: list[RemovableHandle] = []

    @property
    def numbers(self) -> set[int]:
        """The numbers of the hooks in torch's tables."""
        known = {handle.id for handle in self._handles}
        return known | global_hook_numbers(self._hooks)

    def put_on(self) -> None:
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


def numbers_of(hooks: Iterable[Any]) -> set[int]:
    """The numbers of all these hooks in torch's tables: `ModuleHooks`, or others that
    know theirs."""
    return {number for each in hooks for number in each.numbers}


#: Python caches what it looks up in a class by the class's version, and stops that for
#: a class that changes all the time. So after so many changes, a seam of the native
#: core stays where it is: that takes no time, and calls are shown to nobody.
MOST_CHANGES: Final = 64


class _SeamInCalls(Attachment):
    """The seam that shows all module calls to the cursors of its users, `CursorHooks`,
    while nobody hides them. Where torch has no place for the seam, or somebody else has
    taken it, hooks do that; and with the reference core.

    place: where torch has one for the seam.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seam = Seam(no_implementation())
        self.place = None if CORE.module is None else place_of_implementation()
        self._hooks = ModuleHooks(self._seam.forward_pre, self._seam.forward_post)
        self._hiding: set[int] = set()
        self._changes = 0

    @property
    def numbers(self) -> set[int]:
        """The numbers of the hooks in torch's tables, if there are any."""
        return self._hooks.numbers

    def put_on(self) -> None:
        found = None if self.place is None else self.place.read()
        if self.place is None or found not in (None, self._seam):  # somebody else's
            self._hooks.put_on()
        elif found is None:
            self._changes += 1
            self.place.write(self._seam)

    def take_off(self) -> bool:
        self._hooks.take_off()
        stays = self._changes >= MOST_CHANGES
        place = self.place
        if place is not None and place.read() is self._seam and not stays:
            place.write(None)
        return True

    def users_changed(self) -> None:
        """Show modules to the cursors of the users."""
        shown: tuple[Cursor, ...] | None = None
        while shown != (to_show := self._cursors()):  # other threads change them, too
            self._seam.show_to(to_show)
            shown = to_show

    def _cursors(self) -> tuple[Cursor, ...]:
        users = () if self._hiding else self.users
        cursors = (user.cursor for user in users)
        return tuple(cursor for cursor in cursors if cursor is not None)

    def hide(self, hider: object) -> None:
        """Show modules to nobody, until `show`."""
        self._hiding.add(id(hider))
        self.users_changed()

    def show(self, hider: object) -> None:
        """Undo `hide`."""
        self._hiding.discard(id(hider))
        self.users_changed()


@cache
def _seam_in_calls() -> _SeamInCalls:
    """The one there is, made when it is first needed: that calls a module on trial."""
    return _SeamInCalls()


class CursorHooks(Attachment):
    """Shows a cursor every module call of the process, or, if it `sees_outer_alone`,
    every one that is made from outside; by the seam."""

    def __init__(self, cursor: Cursor | None = None) -> None:
        super().__init__()
        self.cursor = cursor

    def follow(self, cursor: Cursor | None) -> None:
        """Show calls to this cursor from now on, or to none."""
        self.cursor = cursor
        _seam_in_calls().users_changed()

    @property
    def numbers(self) -> set[int]:
        """The numbers of its hooks in torch's tables, if there are any."""
        return _seam_in_calls().numbers

    def put_on(self) -> None:
        """Be shown the calls."""
        attachments.attach(_seam_in_calls(), self)

    def take_off(self) -> bool:
        """Be shown none any more."""
        attachments.detach(_seam_in_calls(), self)
        return True


#: What shows module calls.
AnyHooks = ModuleHooks | CursorHooks


def modules_show_by_seam() -> bool:
    """Whether all calls are shown by the seam, and not by hooks."""
    return _seam_in_calls().place is not None


def hide_modules_from(hooks: Iterable[AnyHooks], hider: object) -> Show:
    """Show module calls to none of these, until what is returned is called with those
    that are still there."""
    show_hooks, seam = hide_global_hooks(numbers_of(hooks)), _seam_in_calls()
    seam.hide(hider)

    def show(left: Iterable[AnyHooks]) -> None:
        seam.show(hider)
        show_hooks(numbers_of(left))

    return show
