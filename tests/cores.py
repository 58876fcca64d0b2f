"""What tests have to know of the two cores: each has some of its own."""

from __future__ import annotations

import pytest
from torch.autograd import Function

from torchprof_hooks.kernel.core import CORE

#: Marks what a hook sees of an ``apply`` that was kept before: since torch 2.15, where
#: all of it is C++, nothing (see docs/limits.md).
SEES_KEPT_APPLY = pytest.mark.skipif(
    not isinstance(vars(Function)["apply"], classmethod),
    reason="this torch has all of apply in C++",
)
#: Marks what is true of the native core alone.
NATIVE_CORE = pytest.mark.skipif(
    CORE.name != "native", reason=f"of the native core: {CORE.reason}"
)
