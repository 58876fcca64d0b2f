"""What is told of functions besides their times: what runs them, on what, and where the
program calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchprof_hooks
from tests.cores import NATIVE_CORE
from tests.functions import Cube, Logged, x
from torchprof_hooks import Profile
from torchprof_hooks.profiles.names import Grouping
from torchprof_hooks.profiles.rows import Row

#: The native core hears of operators, however they are called.
pytestmark = NATIVE_CORE
IN_PYTHON = OPERATOR = "C"


def profiled(step: Callable[[], object], times: int = 1) -> Profile:
    with torchprof_hooks.profile(functions=True) as prof:
        for _ in range(times):
            step()
    return prof.profile


def row(profile: Profile, name: str, by: Grouping = "call") -> Row:
    (found,) = [row for row in profile.rows(by) if row.name == name]
    return found


def implementation(profile: Profile, name: str) -> str:
    return row(profile, name, "function").implementation


@pytest.mark.parametrize(
    ("call", "name", "expected"),
    [
        (lambda: F.linear(x(5, 3), x(4, 3)), "linear", "C"),
        (lambda: x(5, 3) @ x(3, 4), "matmul", "C"),
        (lambda: x(5, 3) + 1, "add", "C"),
        (lambda: x(5, 3).T, "T", "C"),
        (lambda: F.gelu(x(5, 3)), "gelu", "C"),
        (lambda: F.layer_norm(x(5, 3), (3,)), "layer_norm", IN_PYTHON),
        (lambda: torch.einsum("ij,jk", x(5, 3), x(3, 4)), "einsum", IN_PYTHON),
        (lambda: torch.ops.aten.mm(x(5, 3), x(3, 4)), "mm", OPERATOR),
        (lambda: torch.ops.aten.mm.default(x(5, 3), x(3, 4)), "mm", OPERATOR),
        (lambda: Cube.apply(x(5, 3)), "Cube", "custom"),
    ],
)
def test_what_runs_a_function(call: Any, name: str, expected: str) -> None:
    profile = profiled(call)
    assert implementation(profile, name) == expected
    calls = [row for row in profile.rows("call") if row.class_name == name]
    assert {row.implementation for row in calls} == {expected}


def test_what_runs_a_node() -> None:
    outputs = torch.relu(Cube.apply(x(5, 3)))  # nobody looked
    profile = profiled(lambda: outputs.sum().backward())
    assert implementation(profile, "CubeBackward") == "custom"
    assert implementation(profile, "ReluBackward0") == "C"


def test_functions_of_one_name_show_what_runs_each() -> None:
    class relu(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x + 0

    def step() -> None:
        relu.apply(x(5, 3))
        nn.Sequential(nn.ReLU())(x(5, 3))

    assert implementation(profiled(step), "relu") == f"{IN_PYTHON}|custom"


def test_inputs_of_calls() -> None:
    tanhs = nn.Sequential(nn.Tanh(), nn.Tanh())
    double = torch.ones(3).double()

    def step() -> None:
        F.linear(torch.ones(5, 3), weight=x(4, 3), bias=x(4))
        torch.where(torch.ones(5, 3) > 0, torch.ones(3, dtype=torch.float64), 0.0)
        torch.cat([torch.ones(2, device="meta", dtype=torch.bfloat16)] * 20)
        F.embedding(torch.tensor([1]), nn.Parameter(torch.ones(5, 3)))
        with torch.autocast("cpu", torch.bfloat16):
            F.linear(x(7, 3), x(4, 3))
        tanhs(torch.ones(3))
        tanhs[1](double)

    profile = profiled(step, times=2)
    found = {row.name: row.inputs for row in profile.rows("call") if row.inputs}
    assert found["linear(5x3, 4x3, 4)"] == ("float32@cpu",) * 3
    assert found["linear(7x3, 4x3)"] == ("float32@cpu",) * 2
    assert found["where(5x3, 3; float64)"] == ("bool@cpu", "float64@cpu")
    assert found["cat(20 * 2; bfloat16)"] == ("bfloat16@meta",) * 8
    assert found["Sequential.0: tanh(3)"] == ("float32@cpu",)
    assert found["Sequential.1: tanh(3)"] == ("float32@cpu",)
    assert found["Sequential.1: tanh(3; float64)"] == ("float64@cpu",)
    [embedding] = [inputs for name, inputs in found.items() if "embedding" in name]
    assert set(embedding) == {"int64@cpu", "float32@cpu"}
    autocast = {row.name: row.autocast for row in profile.rows("call")}
    assert autocast["linear(7x3, 4x3)"] == "bfloat16"
    assert autocast["linear(5x3, 4x3, 4)"] == ""
    assert not [row for row in profile.rows("function") if row.inputs]


def test_a_layer_that_computes_in_another_type_has_rows_of_its_own() -> None:
    layers = [nn.Linear(4, 4) for _ in range(6)]
    layers[3].double()

    def step() -> None:
        for layer in layers:
            layer(torch.ones(2, 4).to(layer.weight.dtype)).sum().backward()

    profile = profiled(step, times=2)
    calls = {row.name: row.calls for row in profile.rows("call")}
    assert calls["Linear: linear(2x4, 4x4, 4)"] == 2
    assert calls["Linear#4: linear(2x4, 4x4, 4; float64)"] == 2


def test_looking_at_inputs_runs_no_code_of_the_user() -> None:
    logged = torch.ones(3).as_subclass(Logged)
    Logged.asked.clear()
    profile = profiled(logged.tanh)
    assert Logged.asked == ["tanh"]
    assert row(profile, "tanh(3)").inputs == ("float32@cpu",)


def test_the_place_of_the_first_call_outside_of_modules() -> None:
    small, large = torch.ones(2, 3, requires_grad=True), torch.ones(4, 3)
    net = nn.Sequential(nn.ReLU(), nn.Sigmoid())

    def step() -> None:
        hidden = torch.tanh(small)
        hidden = torch.tanh(torch.tanh(hidden))
        torch.tanh(large)  # other shapes, another line
        net(hidden).sum().backward()
        torch.sigmoid(small)  # that was called by a module first

    first = step.__code__.co_firstlineno
    infos = profiled(step).modules
    lines = {"tanh(2x3)": 1, "tanh(4x3)": 3, "sum(2x3)": 4, "Sequential": 4}
    for name, line in {**lines, "sigmoid(2x3)": 5}.items():
        place = f"called first at test_function_infos.py:{first + line}"
        assert infos[name].place == place
    assert infos["relu(2x3)"].place == ""  # the module's own code calls it


def test_a_cell_of_ipython_is_a_place_of_the_program() -> None:
    cell = compile("net(x)\n", "<ipython-input-3-1f2e3d4c5b6a>", "exec")
    x = torch.ones(2, 3)
    infos = profiled(lambda: exec(cell, {"net": nn.Sigmoid(), "x": x})).modules
    assert infos["Sigmoid"].place == "called first at <ipython-input-3-1f2e3d4c5b6a>:1"
