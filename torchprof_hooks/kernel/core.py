"""The hot part of measuring, in C++ where that can be built, else in Python.

Both cores have the same interface (see reference/cursor.py), and nothing but what asks
`CORE` knows which one runs. The choice is made once per process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchprof_hooks.kernel.native.build import choose
from torchprof_hooks.kernel.native.verify import untried

#: Which core runs in this process, and why, if it is not the native one.
CORE = choose()

#: What to say of this torch, if it was not tried; one line each.
UNTRIED = untried(CORE.module)

#: The native core, for what only that can do; None where `CORE.module` is.
if TYPE_CHECKING:
    from torchprof_hooks.kernel.native import native as NATIVE
else:
    NATIVE = CORE.module

if TYPE_CHECKING or CORE.module is None:
    from torchprof_hooks.kernel.reference.cursor import (
        Cursor,
        Interceptor,
        around_collection,
        carry_no_ended,
        interrupt_by_collections,
    )
    from torchprof_hooks.kernel.reference.node import Node
else:
    Node, Cursor = CORE.module.Node, CORE.module.Cursor
    Interceptor = CORE.module.Interceptor
    around_collection = CORE.module.around_collection
    carry_no_ended = CORE.module.carry_no_ended
    interrupt_by_collections = CORE.module.interrupt_by_collections

__all__ = [
    "CORE",
    "NATIVE",
    "UNTRIED",
    "Cursor",
    "Interceptor",
    "Node",
    "around_collection",
    "carry_no_ended",
    "interrupt_by_collections",
]
