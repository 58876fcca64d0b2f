"""In which thread a program calls its model."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.attach.module_hooks import ModuleHooks
from torchprof_hooks.capture.tracking.tap import hide_modules, show_modules


class FirstCall:
    """Waits for the first call of a module by the thread that opens it, or of one with
    parameters by another. Threads that prepare data call modules, too: transforms,
    which have none.

    elsewhere: told, in that thread, of the call that begins, if it is another thread.
    is_here: whether the thread that opens it is asked at all.
    """

    def __init__(
        self, elsewhere: Callable[[torch.nn.Module, Any], None], is_here: bool
    ) -> None:
        self._elsewhere = elsewhere
        self._home = get_ident() if is_here else None
        self._is_over = False
        self._hooks = ModuleHooks(self._forward_pre, _nothing_to_see)

    def open(self) -> None:
        """Begin to wait."""
        show_modules(self._hooks, self)

    def _forward_pre(self, module: torch.nn.Module, args: Any) -> None:
        """A call begins."""
        if is_dynamo_compiling() or self._is_over:
            return
        is_home = get_ident() == self._home
        if is_home or next(module.parameters(), None) is not None:
            self._is_over = True
            hide_modules(self._hooks, self)
            if not is_home:
                self._elsewhere(module, args)


def _nothing_to_see(module: torch.nn.Module, args: Any, outputs: Any) -> None:
    """A call ends."""
