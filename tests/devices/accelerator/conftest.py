"""The planted device, built once for all tests of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.devices.accelerator.device import build
from torchprof_hooks.kernel.native.compiler import NotBuiltError


@pytest.fixture(scope="session")
def extension() -> Path:
    """The extension; without a compiler, tests of it are skipped."""
    try:
        return build()
    except NotBuiltError as error:
        if "no C++ compiler" not in str(error):
            raise
        pytest.skip(str(error))
