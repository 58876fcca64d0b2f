"""``profile(kernels=True)`` without a device: `tests/devices/cuda` has one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.cores import NATIVE_CORE
from tests.running import python
from torchprof_hooks import Profile, profile
from torchprof_hooks.instruments.kernels import device_tracer
from torchprof_hooks.kernel.torch_names.profiler import is_profiler_active
from torchprof_hooks.profiles.trace.device_step import DeviceStep

pytestmark = NATIVE_CORE


def train(count: int, **options: Any) -> tuple[Profile, list[Any]]:
    """The profile, and what was computed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
    optimizer = torch.optim.Adam(model.parameters())
    found: list[Any] = []
    with profile(**options) as prof:
        for _ in range(count):
            optimizer.zero_grad()
            out = model(torch.ones(3, 4)).sum()
            out.backward()
            optimizer.step()
            found.append(out.item())
    found += [p.tolist() for p in model.parameters()]
    return prof.profile, [*found, torch.get_rng_state().tolist()]


@pytest.fixture
def in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there was a device."""
    monkeypatch.setattr(device_tracer, "accelerator_in_use", lambda: "a device")


def step_of(found: Profile) -> DeviceStep:
    assert found.device_step is not None
    return found.device_step


def test_nothing_is_there_unless_it_is_asked_for() -> None:
    found, _ = train(5)
    assert found.device_step is None
    assert "kernels" not in found.report(full=True)
    assert "kernels" not in found.to_json()
    done = python(
        "-c",
        "import sys, torch, torchprof_hooks\n"
        "with torchprof_hooks.profile(): torch.nn.Linear(1, 1)(torch.ones(1))\n"
        "print([name for name in sys.modules if 'instruments.kernels' in name])",
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_the_report_says_so() -> None:
    found, _ = train(5, kernels=True)
    assert step_of(found).reason == "no device was in use after 2 steps"
    said = "Device: idle time and kernels are not known: no device was in use"
    assert said in found.report()
    assert (found.steps, found.measured.traced) == (5, 0)


@pytest.mark.usefixtures("in_use")
@pytest.mark.parametrize("some", [{}, {"steps": 1, "every": 3}], ids=str)
def test_traced_steps_are_in_no_table(some: dict[str, Any]) -> None:
    found, computed = train(8, kernels=True, **some)
    assert (step_of(found).step, step_of(found).reason) == (4, "")
    assert found.measured.traced == 2
    assert (found.steps, found.step_times.steps) == (6, 6)
    if not some:
        [row] = [row for row in found.rows() if row.name == "Sequential"]
        assert row.calls == 6
    assert computed == train(8)[1]
    assert not is_profiler_active()


@pytest.mark.usefixtures("in_use")
def test_steps_without_an_optimizer() -> None:
    done = python(
        "-c",
        """
import torch, torchprof_hooks
from torchprof_hooks.instruments.kernels import device_tracer
device_tracer.accelerator_in_use = lambda: "a device"
model = torch.nn.Linear(2, 2)
with torchprof_hooks.profile(kernels=True) as prof:
    for _ in range(8):
        model(torch.ones(2)).sum().backward()
step = prof.profile.device_step
print(step.step, repr(step.reason), prof.profile.measured.traced)
""",
    )
    assert done.stdout.endswith("4 '' 2\n"), done.stderr


@pytest.mark.usefixtures("in_use")
@pytest.mark.parametrize(
    ("steps", "reason"),
    [(1, "no step was traced: it takes four steps"), (3, "has not ended")],
)
def test_too_few_steps(steps: int, reason: str) -> None:
    found, _ = train(steps, kernels=True)
    assert reason in step_of(found).reason
    assert not is_profiler_active()


@pytest.mark.usefixtures("in_use")
def test_a_trace_that_fails_is_not_the_programs_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(device_tracer, "wait_for_accelerator", fail)
    found, computed = train(6, kernels=True)
    assert "RuntimeError('no such luck')" in step_of(found).reason
    assert computed == train(6)[1]


@pytest.mark.usefixtures("in_use")
def test_a_profiler_that_is_forgotten_leaves_no_trace() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    prof = profile(kernels=True)
    prof.start()
    for _ in range(3):
        model(torch.ones(2)).sum().backward()
        optimizer.step()
    assert is_profiler_active()
    del prof
    assert not is_profiler_active()
