"""Functions in a profile: how often each is called, where, and on what shapes.

That their time is right is shown with that of modules, in `test_attribution`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchprof_hooks
from tests.cores import NATIVE_CORE
from tests.functions import ONE, Runs, raises
from tests.planted import Work
from torchprof_hooks import Profile
from torchprof_hooks.profiles.names import Grouping

X = torch.ones(4, 8)
TARGETS = torch.tensor([0, 1, 0, 1])

pytestmark = [pytest.mark.usefixtures("clock"), NATIVE_CORE]


def profile_of(step: Any, times: int = 1) -> Profile:
    with torchprof_hooks.profile(functions=True) as prof:
        for _ in range(times):
            step()
    profile = prof.profile
    for by in ("module", "class", "function", "call"):
        assert sum(row.self_ns for row in profile.rows(by)) == profile.wall_ns
    return profile


def calls(profile: Profile, by: Grouping = "function") -> dict[str, tuple[int, ...]]:
    """Forward, backward and recompute calls of each function."""
    return {
        row.name: tuple(
            row.phases[phase].calls for phase in ("forward", "backward", "recompute")
        )
        for row in profile.rows(by)
        if row.kind == "function"
    }


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.work = nn.Linear(8, 8), nn.Linear(8, 2), Work()

    def forward(self, x: torch.Tensor) -> Any:
        hidden = F.relu(self.first(x))
        return self.last(self.work(hidden) + x + hidden)


def test_call_sites_tell_modules_and_shapes_apart() -> None:
    model = Net()

    def step() -> None:
        F.cross_entropy(model(X), TARGETS).backward(ONE)
        model(torch.ones(3, 8))

    profile = profile_of(step, times=2)
    assert calls(profile) == {
        "linear": (8, 4, 0),
        "relu": (4, 2, 0),
        "_Burning": (4, 2, 0),
        "mul": (4, 0, 0),
        "add": (8, 4, 0),
        "cross_entropy": (2, 2, 0),
        "ones": (2, 0, 0),
    }
    assert calls(profile, "call") == {
        "Net.first: linear(4x8, 8x8, 8)": (2, 2, 0),
        "Net.first: linear(3x8, 8x8, 8)": (2, 0, 0),
        "Net: relu(4x8)": (2, 2, 0),
        "Net: relu(3x8)": (2, 0, 0),
        "Net.work: _Burning(4x8, scalar)": (2, 2, 0),
        "Net.work: _Burning(3x8, scalar)": (2, 0, 0),
        "Net.work: mul(4x8, scalar)": (2, 0, 0),
        "Net.work: mul(3x8, scalar)": (2, 0, 0),
        "Net: add(4x8, 4x8)": (4, 4, 0),
        "Net: add(3x8, 3x8)": (4, 0, 0),
        "Net.last: linear(4x8, 2x8, 2)": (2, 2, 0),
        "Net.last: linear(3x8, 2x8, 2)": (2, 0, 0),
        "cross_entropy(4x2, 4)": (2, 2, 0),
        "ones()": (2, 0, 0),
    }
    rows = {row.name: row for row in profile.rows("call")}
    assert rows["Net: relu(4x8)"].module == "Net"
    assert rows["cross_entropy(4x2, 4)"].module == ""


def test_nodes_of_a_graph_built_outside_go_by_their_names() -> None:
    """Also where graphs have the same shape."""
    layer, x = nn.Linear(8, 2), torch.ones(3, requires_grad=True)
    functions = (torch.relu, torch.tanh, torch.relu, torch.exp)
    losses = [function(x).sum() for function in functions]
    losses.append(F.cross_entropy(torch.relu(layer(X)), TARGETS))

    def step() -> None:
        for loss in losses:
            loss.backward(ONE)

    assert calls(profile_of(step)) == {
        "SumBackward0": (0, 4, 0),
        "ReluBackward0": (0, 3, 0),
        "TanhBackward0": (0, 1, 0),
        "ExpBackward0": (0, 1, 0),
        "NllLossBackward0": (0, 1, 0),
        "LogSoftmaxBackward0": (0, 1, 0),
        "AddmmBackward0": (0, 1, 0),
        "TBackward0": (0, 1, 0),
    }


def test_a_thread_keeps_its_graphs_for_many_steps() -> None:
    """Backward long after forward, with other work in between."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    losses = []

    def step() -> None:
        for _ in range(200):
            losses.append(F.softplus(model(X)).sum())
            with torch.no_grad():
                model(X)
        for loss in losses:
            loss.backward()

    found = calls(profile_of(step))
    assert found["linear"] == (800, 400, 0)
    assert found["softplus"] == (200, 200, 0)
    assert not [name for name in found if "Backward" in name]


class Interrupting(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return Runs.apply(torch.relu(x), raises(KeyboardInterrupt))


def test_functions_called_after_an_interrupt_are_not_those_of_dead_calls() -> None:
    model = Interrupting()

    def step() -> None:
        with pytest.raises(KeyboardInterrupt):
            model(X)
        torch.relu(X)

    cells = profile_of(step, 3).cells
    relus = {path: n.calls for (path, _), n in cells.items() if "relu" in path[-1]}
    assert relus == {("Interrupting", "relu(4x8)"): 3, ("relu(4x8)",): 3}
