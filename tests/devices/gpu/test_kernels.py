"""Kernels of modules, next to what Kineto says of them by ranges around modules."""

from __future__ import annotations

import shutil
from collections import defaultdict

import kernel_times
import pytest
import torch

import torchprof_hooks
from tests.devices.gpu.cuda import DEVICE, Training
from torchprof_hooks.profiles.trace.device_step import DeviceUse

pytestmark = pytest.mark.gpu


def traced(training: Training, steps: int = 5) -> DeviceUse:
    with torchprof_hooks.profile(kernels=True) as prof:
        for _ in range(steps):
            training.step()
    step = prof.profile.device_step
    assert step is not None
    assert not step.reason
    [use] = step.devices
    return use


def test_kernels_are_those_of_the_modules() -> None:
    training = Training(2048)
    training.step()
    torch.cuda.synchronize()
    use = traced(training)
    with kernel_times.trace(training.model) as truth:
        training.step()
        torch.cuda.synchronize()
    found: defaultdict[tuple[str, str], float] = defaultdict(float)
    for row in use.kernels:
        found[row.module, row.phase] += row.busy_ns / 1000
    for (module, phase), expected_us in truth.by_module().items():
        if module:
            assert found[module, phase] == pytest.approx(expected_us, rel=0.1, abs=5)
    assert found["(optimizer) SGD", "optimizer"] > 0
    assert "(launch not recorded)" not in {row.module for row in use.kernels}
    assert "(other threads)" not in {row.module for row in use.kernels}


def test_kernels_of_a_graph_belong_to_the_module_that_replays_it() -> None:
    class Replays(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.eye(512, device=DEVICE))
            self.x = torch.ones(512, 512, device=DEVICE)
            for _ in range(3):
                self.x @ self.weight
            self.graph = torch.cuda.CUDAGraph()
            with torch.no_grad(), torch.cuda.graph(self.graph):
                self.y = torch.relu(self.x @ self.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.graph.replay()
            return x * self.weight.sum() + self.y.sum()

    training = Training()
    training.model.append(Replays())
    training.x = torch.randn(32, 64, device=DEVICE)
    use = traced(training)
    names = {
        kernel.name
        for row in use.kernels
        if row.module.endswith(".4")
        for kernel in row.kernels
    }
    assert any("relu" in n or "clamp" in n or "elementwise" in n for n in names)
    assert len(names) >= 2


@pytest.mark.filterwarnings("ignore")  # the compiler's, which differ between versions
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_kernels_of_graphs_of_compiled_code_belong_to_layers() -> None:
    """In the traced step, graphs are replayed already."""
    pytest.importorskip("triton")
    training = Training(512)
    training.model.compile(mode="reduce-overhead")
    with (  # what is in torch's caches may have been compiled while nobody measured
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        found = {(row.module, row.phase) for row in traced(training).kernels}
    for layer in "Sequential.0", "Sequential.3":
        assert (layer, "forward") in found
        assert (layer, "backward") in found
