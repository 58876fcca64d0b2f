"""Compilations: their time is not that of the call that waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from torchprof_hooks.kernel.attachments import Layer, Patch, attachments
from torchprof_hooks.kernel.interruptions import Interruption
from torchprof_hooks.kernel.observer import Observer
from torchprof_hooks.kernel.torch_names import Function
from torchprof_hooks.kernel.torch_names.compiler import compilation_context
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.profiles.names import COMPILING_NAME


def _make_compiling(original: Function, layer: Layer) -> Function:
    @contextmanager
    def install_callbacks(*args: Any, **kwargs: Any) -> Iterator[None]:
        begun: list[Interruption] = []
        for observer in _compiling.users_here() if layer.is_on else ():
            if observer.reading.site.phase != "compiling":
                found = observer.reading.interrupt(COMPILING_NAME, "compiling")
                found.site.is_region = True
                begun.append(found)
        try:
            with original(*args, **kwargs):
                yield
        finally:
            for found in reversed(begun):
                found.end()

    return install_callbacks


#: The context in which torch.compile compiles something, in the thread that waits for
#: it.
_compiling: Final = Patch(compilation_context, _make_compiling)


class Compilations(Observer):
    """Has compilations interrupt the calls that wait for them."""

    attachments = (_compiling,)

    def new_call(self, site: Site, module: torch.nn.Module) -> None:
        """The program may have begun to use torch.compile."""
        attachments.renew(_compiling)
