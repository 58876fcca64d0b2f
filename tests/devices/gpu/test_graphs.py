"""CUDA graphs: captured while measuring, and replayed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.devices.gpu.cuda import DEVICE, MEASURERS, Training, totals

pytestmark = pytest.mark.gpu

Measurer = Callable[[], AbstractContextManager[Any]]
by_measurer = pytest.mark.parametrize("measure", MEASURERS.values(), ids=MEASURERS)


@contextmanager
def warming_up() -> Iterator[None]:
    """What is captured must have run on another stream than the default one before."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


@pytest.mark.values
@by_measurer
def test_forward_is_captured_and_replayed(measure: Measurer) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).to(DEVICE)
    x = torch.zeros(4, 8, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), measure():
        with warming_up():
            model(x)
        with torch.cuda.graph(graph):
            captured = model(x)
        x.fill_(3)
        graph.replay()
        torch.testing.assert_close(captured, model(x))


@pytest.mark.values
@by_measurer
def test_training_step_is_captured_and_replayed(measure: Measurer) -> None:
    training, eager = Training(), Training()
    for either in (training, eager):
        either.model.eval()  # no random numbers: the graph takes others
    graph = torch.cuda.CUDAGraph()
    with measure():
        with warming_up():
            training.model(training.x).square().mean().backward()
        training.optimizer.zero_grad()
        with torch.cuda.graph(graph):
            training.model(training.x).square().mean().backward()
        graph.replay()
        eager.model(eager.x).square().mean().backward()
    for captured, expected in zip(
        training.model.parameters(), eager.model.parameters(), strict=True
    ):
        assert captured.grad is not None
        assert expected.grad is not None
        torch.testing.assert_close(captured.grad, expected.grad)


def test_graphed_callables_are_rows_like_others() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).to(DEVICE)
    x = torch.randn(4, 8, device=DEVICE)
    with torchprof_hooks.profile() as made_inside:
        graphed: Any = torch.cuda.make_graphed_callables(model, (x,))
    assert totals(made_inside.profile, "Sequential").calls > 0
    with torchprof_hooks.profile() as prof:
        for _ in range(3):
            graphed(x).sum().backward()
    for phase in ("forward", "backward"):
        found = totals(prof.profile, "Sequential", phase)
        assert found.calls == 3
        assert found.device_self_ns > 0


@pytest.mark.values
@pytest.mark.filterwarnings("ignore")  # the compiler's, which differ between versions
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_model(mode: str) -> None:
    pytest.importorskip("triton")
    training = Training()
    training.model.eval()
    expected = training.model(training.x)
    compiled: Any = torch.compile(training.model, mode=mode)
    with torchprof_hooks.profile(functions=True, memory=True) as prof:
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            y = compiled(training.x)
            torch.testing.assert_close(y, expected)
            y.square().mean().backward()
            # They lie in the graph's memory, which the next call overwrites.
            training.model.zero_grad()
    row = totals(prof.profile, "Sequential")
    assert row.calls == 4
    assert row.device_cumulative_ns > 0
