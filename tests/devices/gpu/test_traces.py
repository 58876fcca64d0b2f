"""Traces show kernels below the modules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.devices.gpu.cuda import Training
from torchprof_hooks import ProfilerHook

pytestmark = pytest.mark.gpu


def test_a_trace_has_kernels_and_modules(tmp_path: Path) -> None:
    training = Training()
    with ProfilerHook(1, output_dir=tmp_path, show_memory=True) as hook:
        for _ in range(3):
            training.step()
            hook.step()
    assert hook.failed == hook.skipped == 0
    assert len(hook.paths) == 2  # the first step is not traced
    for path in hook.paths:
        events = json.loads(path.read_text())["traceEvents"]
        assert any(event.get("cat") == "kernel" for event in events)
        names = {event.get("name") for event in events}
        assert {"Sequential", "Sequential.0"} <= names
