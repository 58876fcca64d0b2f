"""When no step is traced for idle devices; see `tests/devices` for more."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from torchprof_hooks import ProfilerHook
from torchprof_hooks.instruments import interrupting
from torchprof_hooks.instruments.kernels import device_tracer
from torchprof_hooks.instruments.kernels.device_tracer import DeviceTracer


@pytest.fixture(autouse=True)
def _in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there was a device."""
    monkeypatch.setattr(device_tracer, "accelerator_in_use", lambda: "a device")


def work() -> None:
    nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()


def test_a_torch_that_hides_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_tracer, "shows_devices", lambda: False)
    idle = DeviceTracer(interrupting)
    assert not idle.begin(2)
    assert idle.found().reason == "this torch does not show what devices have run"


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ("before", "another profiler of torch was running"),
        ("during", "another profiler of torch began during the step"),
    ],
)
def test_another_profiler(other: str, reason: str) -> None:
    idle = DeviceTracer(interrupting)
    theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    if other == "before":
        theirs.start()
    assert idle.begin(2) == (other == "during")
    idle.begin(3)
    if other == "during":
        theirs.start()
    work()
    idle.end(4)
    theirs.stop()

    assert idle.found().reason == reason
    assert "aten::sum" in {event.key for event in theirs.key_averages()}


def test_a_step_that_a_hook_traces(tmp_path: Path) -> None:
    idle = DeviceTracer(interrupting)
    with ProfilerHook(1, output_dir=tmp_path, trace_first=True):
        assert not idle.begin(2)

    assert idle.found().reason == "another profiler of torch was running"


def test_a_hook_while_it_traces(tmp_path: Path) -> None:
    idle = DeviceTracer(interrupting)
    idle.begin(2)
    hook = ProfilerHook(1, output_dir=tmp_path, trace_first=True)
    with pytest.warns(UserWarning, match="skips the trace"):
        hook.__enter__()
    idle.begin(3)
    work()
    idle.end(4)
    hook.step()
    hook.step()
    hook.__exit__(None, None, None)

    assert not idle.found().reason
    assert (hook.skipped, len(hook.paths)) == (1, 1)
