"""Functions in a profile: planted time, sums, names and places."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchprof_hooks
from tests.cores import NATIVE_CORE, PYTHON_CORE
from tests.functions import ONE
from tests.planted import Work, check
from torchprof_hooks import Profile
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import Grouping

X = torch.ones(4, 8)

pytestmark = pytest.mark.usefixtures("clock")


def profile_of(step: Any, times: int = 1) -> Profile:
    with torchprof_hooks.profile(functions=True) as prof:
        for _ in range(times):
            step()
    profile = prof.profile
    for by in ("module", "class", "function", "call"):
        assert sum(row.self_ns for row in profile.rows(by)) == profile.wall_ns
    return profile


def calls(
    profile: ProfileData, by: Grouping = "function"
) -> dict[str, tuple[int, ...]]:
    """Forward, backward and recompute calls of each function."""
    return {
        row.name: tuple(
            row.phases[phase].calls for phase in ("forward", "backward", "recompute")
        )
        for row in profile.rows(by)
        if row.kind == "function"
    }


class Branches(nn.Module):
    """q, k and v share their input."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (Work() for _ in range(4))

    def forward(self, x: torch.Tensor) -> Any:
        return self.o(self.q(x) + self.k(x) + self.v(x))


def test_planted_time_of_modules_that_share_an_input() -> None:
    model = Branches()
    profile = check(lambda: model(X).sum().backward(), model, functions=True)
    sites = calls(profile, "call")
    assert sites["Branches.q: _Burning(4x8, scalar)"] == (1, 1, 0)
    assert sites["Branches: add(4x8, 4x8)"] == (2, 2, 0)
    assert sites["sum(4x8)"] == (1, 1, 0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_planted_time_in_a_checkpoint(reentrant: bool) -> None:
    model = Work()
    x = X.clone().requires_grad_()

    def step() -> None:
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()

    profile = check(step, model, functions=True)
    assert calls(profile)["_Burning"] == (1, 1, 1)


def test_planted_time_of_the_second_derivative() -> None:
    model = Work()
    x = X.clone().requires_grad_()

    def step() -> None:
        (grad,) = torch.autograd.grad(model(x).pow(2).sum(), x, create_graph=True)
        grad.pow(2).sum().backward()

    check(step, model, functions=True)


TARGETS = torch.tensor([0, 1, 0, 1])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(F.relu(self.first(x)))


def test_call_sites_tell_modules_and_shapes_apart() -> None:
    model = Net()

    def step() -> None:
        F.cross_entropy(model(X), TARGETS).backward(ONE)
        model(torch.ones(3, 8))

    profile = profile_of(step, times=2)
    assert calls(profile) == {
        "linear": (8, 4, 0),
        "relu": (4, 2, 0),
        "cross_entropy": (2, 2, 0),
        "ones": (2, 0, 0),
    }
    assert calls(profile, "call") == {
        "Net.first: linear(4x8, 8x8, 8)": (2, 2, 0),
        "Net.first: linear(3x8, 8x8, 8)": (2, 0, 0),
        "Net: relu(4x8)": (2, 2, 0),
        "Net: relu(3x8)": (2, 0, 0),
        "Net.last: linear(4x8, 2x8, 2)": (2, 2, 0),
        "Net.last: linear(3x8, 2x8, 2)": (2, 0, 0),
        "cross_entropy(4x2, 4)": (2, 2, 0),
        "ones()": (2, 0, 0),
    }
    rows = {row.name: row for row in profile.rows("call")}
    assert rows["Net: relu(4x8)"].module == "Net"
    assert rows["cross_entropy(4x2, 4)"].module == ""


def test_modules_are_those_of_a_profile_without_functions() -> None:
    model = Net()

    def step() -> None:
        model(X).sum().backward()

    with torchprof_hooks.profile() as prof:
        step()
    with_functions = {r.name: r for r in profile_of(step).rows()}
    for row in prof.profile.rows():
        other = with_functions[row.name]
        for phase, totals in row.phases.items():
            assert other.phases[phase].calls == totals.calls, (row.name, phase)


@PYTHON_CORE  # for the other, a step is one row
def test_functions_of_optimizers_belong_to_them() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def step() -> None:
        model(X).sum().backward()
        optimizer.step()

    profile = profile_of(step)
    (row,) = [row for row in profile.rows("function") if row.name == "add_"]
    assert row.phases["optimizer"].calls == 4
    assert row.calls == 4
    assert profile.rows()[-1].name != "add_"


# Once in a process, torch's own LBFGS makes a number of a loss that has a graph.
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
def test_closures_of_optimizers_own_their_backward() -> None:
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.sum(model(X).pow(2))
        loss.backward()
        return loss

    found = calls(profile_of(lambda: optimizer.step(closure)))
    assert not [name for name in found if "Backward" in name]
    assert found["linear"][0] == found["linear"][1] > 2


def test_nodes_of_a_graph_built_outside_go_by_their_names() -> None:
    loss = F.cross_entropy(Net()(X), TARGETS)
    found = calls(profile_of(lambda: loss.backward(ONE)))
    assert found == {
        "NllLossBackward0": (0, 1, 0),
        "LogSoftmaxBackward0": (0, 1, 0),
        "AddmmBackward0": (0, 2, 0),
        "TBackward0": (0, 2, 0),
        "ReluBackward0": (0, 1, 0),
    }


def test_graphs_of_one_shape_with_other_nodes_are_not_mixed_up() -> None:
    def loss(function: Any) -> torch.Tensor:
        x = torch.ones(3, requires_grad=True)
        return torch.as_tensor(function(x).sum())

    losses = [loss(f) for f in (torch.relu, torch.tanh, torch.relu, torch.exp)]
    with torchprof_hooks.profile(functions=True) as prof:
        for each in losses:
            each.backward(ONE)
    assert calls(prof.profile) == {
        "SumBackward0": (0, 4, 0),
        "ReluBackward0": (0, 2, 0),
        "TanhBackward0": (0, 1, 0),
        "ExpBackward0": (0, 1, 0),
    }


def test_a_thread_keeps_its_graphs_for_many_steps() -> None:
    """Backward long after forward, with other work in between."""
    model = Net()
    with torchprof_hooks.profile(functions=True) as prof:
        losses = []
        for _ in range(200):
            losses.append(F.softplus(model(X)).sum())
            with torch.no_grad():
                model(X)
        for loss in losses:
            loss.backward()
    found = calls(prof.profile)
    assert found["linear"] == (800, 400, 0)
    assert found["softplus"] == (200, 200, 0)
    assert not [name for name in found if "Backward" in name]


def test_many_shapes_are_counted_together() -> None:
    with torchprof_hooks.profile(functions=True) as prof:
        for size in range(1, 200):
            torch.relu(torch.ones(size))
    sites = [name for name in calls(prof.profile, "call") if name.startswith("relu")]
    assert 50 < len(sites) < 100
    rows = {row.name: row for row in prof.profile.rows("call")}
    assert rows["relu(other shapes)"].calls == 199 - (len(sites) - 1)
    assert calls(prof.profile)["relu"] == (199, 0, 0)


class _Interrupted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients


class _Interrupting(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return _Interrupted.apply(torch.relu(x))


@NATIVE_CORE  # hooks do not tell of the interrupt
def test_functions_called_after_an_interrupt_are_not_those_of_dead_calls() -> None:
    model = _Interrupting()

    def step() -> None:
        with pytest.raises(KeyboardInterrupt):
            model(X)
        torch.relu(X)

    profile = profile_of(step, 3)
    relus = {path for path, phase in profile.cells if path[-1].startswith("relu(")}
    assert relus == {("_Interrupting", "relu(4x8)"), ("relu(4x8)",)}
    for path in relus:
        assert profile.cells[path, "forward"].calls == 3
