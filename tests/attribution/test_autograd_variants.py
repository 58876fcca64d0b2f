"""Other ways to differentiate, and what else lives in autograd's neighbourhood."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.cores import NATIVE_CORE
from tests.planted import Work, check

MODEL = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
X = torch.arange(3.0)

pytestmark = [
    pytest.mark.usefixtures("clock"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled"),
    # Torch itself makes numbers of tensors with gradients, in LBFGS.
    pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad"),
]


def loss(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = MODEL(x).float().sum()
    return result


def functional_call(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
    result: torch.Tensor = torch.func.functional_call(MODEL, parameters, X)
    return result.sum()


def batched_gradients() -> Any:
    x = X.clone().requires_grad_()
    y = MODEL(x)
    return torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True)


def from_a_gradient_edge() -> Any:
    x = X.clone().requires_grad_()
    edge = torch.autograd.graph.get_gradient_edge(MODEL(x))
    return torch.autograd.grad([edge], x, torch.ones(2))


def inside(context: Callable[[], AbstractContextManager[Any]]) -> Callable[[], Any]:
    """Forward and backward inside of a context."""

    def step() -> Any:
        x = X.clone().requires_grad_()
        with context():
            loss(x).backward()
        return x.grad

    return step


WAYS: dict[str, Callable[[], Any]] = {
    "func.grad": lambda: torch.func.grad(functional_call)(
        dict(MODEL.named_parameters())
    ),
    "vmap of grad": lambda: torch.func.vmap(torch.func.grad(loss))(torch.randn(4, 3)),
    "jacrev": lambda: torch.func.jacrev(MODEL)(X),
    "jacfwd": lambda: torch.func.jacfwd(MODEL)(X),
    "hessian": lambda: torch.func.hessian(loss)(X),
    "functional.jacobian": lambda: torch.autograd.functional.jacobian(MODEL, X),
    "functional.hessian": lambda: torch.autograd.functional.hessian(loss, X),
    "batched gradients": batched_gradients,
    "saved tensor hooks": inside(torch.autograd.graph.save_on_cpu),
    "autocast": inside(lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "gradient edge": from_a_gradient_edge,
    "anomaly detection": inside(lambda: torch.autograd.detect_anomaly(check_nan=False)),
}


def results(way: Callable[[], Any]) -> list[torch.Tensor]:
    torch.manual_seed(3)
    leaves = torch.utils._pytree.tree_leaves(way())
    return [leaf for leaf in leaves if leaf is not None]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_same_results(way: Callable[[], Any]) -> None:
    expected = results(way)
    with torchprof_hooks.profile() as prof:
        measured = results(way)
    assert all(torch.equal(m, e) for m, e in zip(measured, expected, strict=True))
    rows = {row.name: row for row in prof.profile.rows()}
    assert rows["Sequential"].calls >= 1
    assert prof.profile.aborted_calls == 0
    assert sum(row.self_ns for row in rows.values()) == prof.profile.wall_ns


@pytest.mark.parametrize("functions", [False, pytest.param(True, marks=NATIVE_CORE)])
def test_optimizer_that_runs_the_model_itself(functions: bool) -> None:
    model = nn.Sequential(Work(1, 2), Work(2, 3))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (model(torch.ones(3)) - 2).square().sum()
        loss.backward()
        return loss

    profile = check(lambda: optimizer.step(closure), model, functions=functions)
    rows = {row.name: row for row in profile.rows("module")}
    assert profile.steps == 1
    assert rows["(optimizer) LBFGS"].self_ns == 0
    phases = rows["Sequential"].phases
    assert phases["forward"].calls == phases["backward"].calls > 1
    assert phases["recompute"].calls == 0
    # Each node of the engine's is of a function of the closure, called from outside.
    assert not [r.name for r in profile.rows("function") if "Backward0" in r.name]
    for phase in ("forward", "backward") if functions else ():
        assert profile.cells[("square(3)",), phase].calls >= 1


def test_module_called_by_a_hook_of_a_tensor() -> None:
    model, helper = nn.Sequential(Work(1, 3)), nn.Sequential(Work(4, 1))

    def hook(gradient: torch.Tensor) -> Any:
        with torch.no_grad():
            return helper(gradient)

    def step() -> None:
        x = torch.ones(3, requires_grad=True)
        x.register_hook(hook)
        model(x).sum().backward()

    check(step, model)
