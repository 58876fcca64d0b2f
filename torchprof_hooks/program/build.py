"""``python -m torchprof_hooks build``: builds the native core beforehand."""

from __future__ import annotations

from torchprof_hooks.capture.core.build import NotBuiltError, native_module
from torchprof_hooks.program.complaints import complain


def build() -> int:
    """Build the native core, if it is not there. Returns the exit code."""
    try:
        path = native_module().__file__
    except NotBuiltError as error:
        complain(f"torchprof_hooks: no native core: {error}")
        return 1
    print(f"torchprof_hooks: the native core is in {path}")
    return 0
