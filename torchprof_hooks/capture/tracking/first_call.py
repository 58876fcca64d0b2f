"""In which thread a program calls its model."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.attach.module_hooks import ModuleHooks
from torchprof_hooks.capture.tracking.tap import hide_modules, show_modules

#: Told of the end of a call: with the module, what it was called with, and what it has
#: returned.
AtEnd = Callable[[torch.nn.Module, Any, Any], None]


class FirstCall:
    """Waits until the thread that opens it calls a module, or another thread one with
    parameters: threads that prepare data call modules, too, but transforms have no
    parameters.

    elsewhere: told of a call by another thread, in that thread, as the call begins.
        Hooks that it puts on modules are shown later calls only, so what it returns is
        told of the end of this one.
    is_here: if not, the thread that opens it is treated like the others.
    """

    def __init__(
        self,
        elsewhere: Callable[[torch.nn.Module, Any], AtEnd | None],
        is_here: bool,
    ) -> None:
        self._elsewhere = elsewhere
        self._home = get_ident() if is_here else None
        self._is_over = False
        self._called = 0  # the id of the module
        self._at_end: AtEnd | None = None
        self._hooks = ModuleHooks(self._forward_pre, self._forward_post)

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
            if not is_home:
                self._called = id(module)
                self._at_end = self._elsewhere(module, args)
            if self._at_end is None:
                hide_modules(self._hooks, self)

    def _forward_post(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        """A call ends."""
        if self._at_end is not None and id(module) == self._called:
            at_end, self._at_end = self._at_end, None
            hide_modules(self._hooks, self)
            at_end(module, args, outputs)
