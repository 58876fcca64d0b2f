"""The hot part of measuring, in C++ where that can be built, else in Python.

Both cores have the same interface (see `core.python`), and nothing outside of this
folder knows which one runs. The choice is made once per process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchprof_hooks.capture.core.choose import choose

#: What runs, and why it is not the native core.
CORE = choose()

if TYPE_CHECKING or CORE.module is None:
    from torchprof_hooks.capture.core.python import Cursor, Node, OwningCursor
else:
    Node = CORE.module.Node
    Cursor = OwningCursor = CORE.module.Cursor

__all__ = ["CORE", "Cursor", "Node", "OwningCursor"]
