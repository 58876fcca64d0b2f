"""Backward passes in the threads that the engine has for devices."""

from __future__ import annotations

import json
from typing import Any

import pytest
from torch.utils import backend_registration

from tests.programs import python

STEPS = 3

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch does not let Python play a device",
)
functions = pytest.mark.parametrize("functions", [False, True])


def calls(*options: str) -> dict[str, Any]:
    """See `tests.capture.device_thread`."""
    done = python("-m", "tests.capture.device_thread", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@functions
def test_backward_is_divided_among_modules(functions: bool) -> None:
    found = calls(*["functions"] * functions)
    for name in ("Net", "Net.a", "Net.b"):
        assert found[name] == {"forward": STEPS, "backward": STEPS, "recompute": 0}


@functions
def test_recomputation_by_a_checkpoint_outside_of_modules(functions: bool) -> None:
    found = calls("checkpoint", *["functions"] * functions)
    for name in ("Net", "Net.a", "Net.b"):
        assert found[name] == {"forward": STEPS, "backward": STEPS, "recompute": STEPS}
