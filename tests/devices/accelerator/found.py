"""What processes with the planted device have printed of their scenarios."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest


def found_in(done: subprocess.CompletedProcess[str]) -> Any:
    """What a process has found, which has ended well: its last line."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def traced_in(done: subprocess.CompletedProcess[str]) -> Any:
    """The same of one that records traces; without these, the test is skipped."""
    found = found_in(done)
    if found is None:
        pytest.skip("this torch has no headers of Kineto, or others")
    return found
