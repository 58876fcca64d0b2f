"""Programs that many tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import TRAIN


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path
