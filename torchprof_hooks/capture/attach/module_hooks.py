"""Hooks on all modules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from torchprof_hooks.capture.attach.attachments import Attachment, attachments
from torchprof_hooks.capture.core import (
    SHARED_HOOKS,
    Cursor,
    hooks_of,
    show_modules_to,
)
from torchprof_hooks.capture.torch_names.hook_tables import (
    global_hook_numbers,
    remove_global_hooks,
)
from torchprof_hooks.capture.torch_names.place import Function


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
        """Those of the hooks in torch's tables."""
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


class _SharedHooks(ModuleHooks):
    """The pair that serves all cursors; its users are the `CursorHooks` of these."""

    def users_changed(self) -> None:
        """Show modules to their cursors."""
        show_modules_to(tuple(user.cursor for user in self.users))


class CursorHooks(ModuleHooks):
    """Shows one cursor every module call of the process.

    Torch calls the hooks of all threads in each: where the core has one pair for all
    cursors, a thread more costs the others next to nothing.
    """

    def __init__(self, cursor: Cursor) -> None:
        super().__init__(*hooks_of(cursor))
        self.cursor = cursor

    @property
    def numbers(self) -> set[int]:
        """Those of the hooks in torch's tables."""
        return super().numbers if _shared is None else _shared.numbers

    def put_on(self) -> None:
        """Be shown the calls."""
        if _shared is None:
            super().put_on()
        else:
            attachments.attach(_shared, self)

    def take_off(self) -> bool:
        """Be shown none any more."""
        if _shared is None:
            return super().take_off()
        attachments.detach(_shared, self)
        return True


_shared: Final = None if SHARED_HOOKS is None else _SharedHooks(*SHARED_HOOKS)
