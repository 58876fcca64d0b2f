"""Private names of ``torch.export`` and of ``torch.jit``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from torchprof_hooks.capture.torch_names.place import Place

#: The module that has the context in which torch.export traces, and those that take it
#: from there by name.
_EXPORTING: Final = (
    "torch._export.utils",
    "torch._dynamo.functional_export",
    "torch.export._trace",
)


def export_contexts() -> Iterator[Place]:
    """Where the function is kept that makes the context in which torch.export traces a
    model, as far as it has been imported. torch has no hook for that."""
    for name in _EXPORTING:
        if name in sys.modules:
            yield Place(sys.modules[name], "_compiling_state_context")


def script_module_maker() -> Place:
    """The function that makes a script module of a module and all in it."""
    return Place(sys.modules.get("torch.jit._recursive"), "create_script_module")
