"""Each test has a process of its own: one that has the device has it for good."""

from __future__ import annotations

import pytest

from tests.devices.accelerator.device import build
from tests.running import python
from torchprof_hooks.kernel.native.compiler import NotBuiltError


@pytest.fixture
def device() -> None:
    """The device is built; without a compiler, its tests are skipped."""
    try:
        build()
    except NotBuiltError as error:
        if "no C++ compiler" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Run the test in a process that has the device."""
    test = f"{pyfuncitem.module.__name__!r}, {pyfuncitem.name!r}"
    program = f"from tests.devices.accelerator.device import run; run({test})"
    done = python("-c", program)
    if done.returncode:
        pytest.fail(done.stderr, pytrace=False)
    return True
