"""Which core runs in this process."""

from __future__ import annotations

import os
import time
from types import BuiltinFunctionType, ModuleType
from typing import Final, Literal, NamedTuple

from torchprof_hooks.capture.core.build import native_module
from torchprof_hooks.capture.core.compiler import NotBuiltError

#: Environment variable that asks for a core: "native" or "python".
VARIABLE: Final = "TORCHPROF_HOOKS_CORE"


class Core(NamedTuple):
    """The core of this process.

    name: "native" or "python".
    module: the native core; None if the core in Python runs.
    reason: why the native core does not run; "" if it does.
    """

    name: Literal["native", "python"]
    module: ModuleType | None = None
    reason: str = ""


def choose() -> Core:
    """The native core, unless it cannot be loaded, or the environment forbids it."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "python":
        return Core("python", reason=f"{VARIABLE}=python")
    if wanted not in ("", "native"):
        reason = f"{VARIABLE} must be 'native' or 'python', not {wanted!r}"
        return Core("python", reason=reason)
    try:
        module = native_module()
    except NotBuiltError as error:
        return Core("python", reason=str(error))
    clock = time.perf_counter_ns
    if not isinstance(clock, BuiltinFunctionType):  # somebody has replaced it
        module.set_clock(clock)
    return Core("native", module)
