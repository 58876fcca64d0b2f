"""Nothing about the measured program changes but its speed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchprof_hooks
from tests.invisible import WITH_BUDGET, Measurer
from torchprof_hooks import LinkHook

every_measurer = pytest.mark.parametrize(
    "measurer", WITH_BUDGET.values(), ids=WITH_BUDGET
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.body = nn.Sequential(
            nn.Linear(16, 32), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(32, 16)
        )

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.body(self.norm(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.rnn = nn.LSTM(16, 16, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.blocks[0](x)
        x = checkpoint(self.blocks[1], x, use_reentrant=False)
        x = checkpoint(self.blocks[2], x, use_reentrant=True)
        return self.rnn(x)[0]


def train(steps: int = 4) -> list[torch.Tensor]:
    """Everything that a training run leaves behind."""
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    kept: list[torch.Tensor] = []
    for _ in range(steps):
        output = model(torch.randn(2, 5, 16))
        optimizer.zero_grad()
        output.square().mean().backward()
        optimizer.step()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        kept += [output.detach(), *grads]
    return [*kept, *model.parameters(), torch.get_rng_state()]


@every_measurer
def test_results_gradients_and_random_state_are_bit_identical(
    measurer: Measurer,
) -> None:
    expected = train()
    with measurer():
        measured = train()
    assert all(map(torch.equal, measured, expected))
    assert len(measured) == len(expected)


class _Probe:
    """Dies with the node whose metadata holds it."""


def graph_without_backward(measurer: Measurer) -> object:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
    with measurer():
        output = model(torch.ones(2, 4, requires_grad=True) * 2)
        alive = weakref.ref(output.grad_fn.metadata.setdefault("probe", _Probe()))
        assert alive() is not None
        del output
        return alive()


def output_after_backward(measurer: Measurer) -> object:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with measurer():
        output = model(torch.ones(2, 4))
        alive = weakref.ref(output)
        output.sum().backward()
        del output
        return alive()


def module(measurer: Measurer) -> object:
    with measurer():
        model = nn.Sequential(nn.Linear(4, 4))
        model(torch.ones(2, 4)).sum().backward()
        alive = weakref.ref(model)
        del model
        return alive()


def variable_of_a_caller(measurer: Measurer) -> object:
    def measured() -> weakref.ref[nn.Module]:
        model = nn.Linear(4, 4)
        with measurer():
            model(torch.ones(2, 4)).sum().backward()
        return weakref.ref(model)

    return measured()()


@every_measurer
@pytest.mark.parametrize(
    "what",
    [graph_without_backward, output_after_backward, module, variable_of_a_caller],
    ids=lambda what: what.__name__,
)
def test_what_the_program_drops_is_freed_at_once(
    what: Callable[[Measurer], object], measurer: Measurer
) -> None:
    gc.collect()
    gc.disable()
    try:
        assert what(measurer) is None
    finally:
        gc.enable()


def test_ids_of_dead_modules_are_not_mistaken() -> None:
    with torchprof_hooks.profile() as prof:
        for width in range(1, 60):
            module: nn.Module = nn.Linear(1, 1) if width % 2 else nn.ReLU()
            module(torch.ones(1, 1))
            del module
    calls = {row.class_name: row.calls for row in prof.profile.rows(by="class")}
    assert (calls["Linear"], calls["ReLU"]) == (30, 29)


def test_gradients_are_not_copied() -> None:
    """A leaf's first gradient is the tensor that the engine made, not a copy."""
    made: list[int] = []

    class Remember(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            grad = grad.clone()
            made.append(grad.data_ptr())
            return grad

    class Last(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return Remember.apply(x)

    leaf = torch.ones(3, requires_grad=True)
    model = nn.Sequential(Last(), nn.Softplus())
    with torchprof_hooks.profile():
        model(leaf).sum().backward()
    assert leaf.grad is not None
    assert made == [leaf.grad.data_ptr()]


@pytest.mark.parametrize("entered", [LinkHook, torchprof_hooks.profile])
def test_foreign_hooks_and_warnings_stay_in_place(entered: Callable[[], Any]) -> None:
    calls: list[Any] = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, out: calls.append(type(module))
    )
    with handle:
        with entered():
            nn.ReLU()(torch.ones(1))
        nn.ReLU()(torch.ones(1))
    assert calls == [nn.ReLU, nn.ReLU]
