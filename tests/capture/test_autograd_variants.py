"""Other ways to differentiate, and what else lives in autograd's neighbourhood."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.fake_clock import MS
from tests.planted import Work, check
from torchprof_hooks.profiles.collectives import BUCKETS_NAME

MODEL = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
X = torch.arange(3.0)

pytestmark = pytest.mark.usefixtures("clock")


def functional_call(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
    result: torch.Tensor = torch.func.functional_call(MODEL, parameters, X)
    return result.sum()


def batched_gradients() -> Any:
    x = X.clone().requires_grad_()
    y = MODEL(x)
    return torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True)


def with_saved_tensor_hooks() -> Any:
    x = X.clone().requires_grad_()
    with torch.autograd.graph.save_on_cpu():
        MODEL(x).sum().backward()
    return x.grad


def with_autocast() -> Any:
    x = X.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = MODEL(x).float().sum()
    loss.backward()
    return x.grad


def from_a_gradient_edge() -> Any:
    x = X.clone().requires_grad_()
    edge = torch.autograd.graph.get_gradient_edge(MODEL(x))
    return torch.autograd.grad([edge], x, torch.ones(2))


def with_anomaly_detection() -> Any:
    x = X.clone().requires_grad_()
    with torch.autograd.detect_anomaly(check_nan=False):
        MODEL(x).sum().backward()
    return x.grad


WAYS: dict[str, Callable[[], Any]] = {
    "func.grad": lambda: torch.func.grad(functional_call)(
        dict(MODEL.named_parameters())
    ),
    "vmap of grad": lambda: torch.func.vmap(torch.func.grad(lambda x: MODEL(x).sum()))(
        torch.randn(4, 3)
    ),
    "jacrev": lambda: torch.func.jacrev(MODEL)(X),
    "jacfwd": lambda: torch.func.jacfwd(MODEL)(X),
    "hessian": lambda: torch.func.hessian(lambda x: MODEL(x).sum())(X),
    "functional.jacobian": lambda: torch.autograd.functional.jacobian(MODEL, X),
    "functional.hessian": lambda: torch.autograd.functional.hessian(
        lambda x: MODEL(x).sum(), X
    ),
    "batched gradients": batched_gradients,
    "saved tensor hooks": with_saved_tensor_hooks,
    "autocast": with_autocast,
    "gradient edge": from_a_gradient_edge,
    "anomaly detection": with_anomaly_detection,
}


def flatten(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if leaf is not None]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_same_results(way: Callable[[], Any]) -> None:
    torch.manual_seed(3)
    expected = flatten(way())
    torch.manual_seed(3)
    with torchprof_hooks.profile() as prof:
        measured = flatten(way())
    assert all(torch.equal(m, e) for m, e in zip(measured, expected, strict=True))
    rows = {row.name: row for row in prof.profile.rows()}
    assert rows["Sequential"].calls >= 1
    assert prof.profile.aborted_calls == 0
    assert sum(row.self_ns for row in prof.profile.rows()) == prof.profile.wall_ns


# Torch 2.8 itself makes numbers of tensors with gradients there.
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
def test_optimizer_that_runs_the_model_itself() -> None:
    model = nn.Sequential(Work(1, 2), Work(2, 3))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (model(torch.ones(3)) - 2).square().sum()
        loss.backward()
        return loss

    profile = check(lambda: optimizer.step(closure), model)
    rows = {row.name: row for row in profile.rows()}
    assert profile.steps == 1
    assert rows["(optimizer) LBFGS"].self_ns == 0
    assert rows["Sequential"].phases["recompute"].calls == 0


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


@pytest.fixture
def parallel(tmp_path: Path) -> Iterator[nn.Module]:
    """Under DistributedDataParallel, in a group of one process."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    model = nn.Sequential(Work(2, 4), Work(3, 5))
    yield nn.parallel.DistributedDataParallel(model)
    torch.distributed.destroy_process_group()


def test_distributed_data_parallel(parallel: nn.Module) -> None:
    profile = check(lambda: parallel(torch.ones(3)).sum().backward())
    rows = {row.name: row for row in profile.rows()}
    inner = rows["DistributedDataParallel.module.1"]
    assert inner.phases["forward"].self_ns == 3 * MS
    assert inner.phases["backward"].self_ns == 5 * MS


def test_all_who_measure_see_the_waiting_for_gradients(parallel: nn.Module) -> None:
    with (
        torchprof_hooks.profile() as first,
        torchprof_hooks.profile(functions=True) as second,
        torchprof_hooks.profile() as third,
    ):
        for _ in range(3):
            parallel(torch.ones(3)).sum().backward()
        nn.Linear(3, 3)(torch.ones(3)).sum().backward()  # that waits for nobody
    for prof in (first, second, third):
        rows = {row.name: row.calls for row in prof.profile.rows()}
        assert rows["(waiting for gradients)"] == 3
        [buckets] = [c for c in prof.profile.collectives if c.name == BUCKETS_NAME]
        assert buckets.calls == 3
