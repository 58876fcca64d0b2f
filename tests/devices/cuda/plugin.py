"""What pytest does where torch runs on the planted CUDA runtime.

Each test runs in a process of its own, as it can have a device that fails or is out of
memory; the one that starts them never uses a device. Tests that look at what kernels
have computed are not there.
"""

from __future__ import annotations

import os
import tempfile
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

from tests.devices.cuda import planted
from tests.running import TRAINING

#: For tests of real devices, which plant nothing and have the machine's clock.
LIKE_REAL: Final = {
    "real_clock": 1,
    "default_ns": 2_000,
    "copy_ns": 1_000,
    "gemm_ns": 1_000_000,
}

for name in TRAINING:  # what optimizers and others import when they are first used
    import_module(name)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave out tests of values."""
    out = [item for item in items if item.get_closest_marker("values")]
    items[:] = [item for item in items if item not in out]
    config.hook.pytest_deselected(items=out)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the test in a fork."""
    if pyfuncitem.get_closest_marker("gpu") is None:
        return None
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if child == 0:
            _run(pyfuncitem, said)
        _, status = os.waitpid(child, 0)
        said.seek(0)
        outcome = said.read()
    if status:
        pytest.fail(outcome or f"it ended with status {status}", pytrace=False)
    if outcome:
        pytest.skip(outcome)
    return True


def _run(item: pytest.Function, said: Any) -> None:
    """In the fork: says what has failed, or why the test was skipped."""
    code = 1
    try:
        arguments = item._fixtureinfo.argnames
        if Path(__file__).parent not in item.path.parents:
            planted.put(**LIKE_REAL)
        item.obj(**{name: item.funcargs[name] for name in arguments})
        missing = planted.missing()
        assert not missing, f"missing: {', '.join(missing)}"
        code = 0
    except pytest.skip.Exception as skipped:
        said.write(str(skipped))
        code = 0
    except BaseException:
        said.write(traceback.format_exc())
    finally:
        said.flush()
        os._exit(code)
