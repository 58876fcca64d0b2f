"""Kernels that Inductor really compiles: fused ones, and those of optimizers."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.attribution.test_compiled_code import folder, fresh_compiler, in_torch
from tests.compiled import DIVIDED
from tests.traces import Trace
from torchprof_hooks import ProfilerHook, profile
from torchprof_hooks.instruments.compiled.places import short_name
from torchprof_hooks.instruments.compiled.wrapper import CHANGED
from torchprof_hooks.kernel.torch_names.inductor import wrappers

__all__ = ["folder", "fresh_compiler"]

pytestmark = [DIVIDED, pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


class Gated(nn.Module):
    def __init__(self, wide: int) -> None:
        super().__init__()
        self.up, self.act = nn.Linear(8, wide), nn.GELU()
        self.norm, self.down = nn.LayerNorm(wide), nn.Linear(wide, 8)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down(self.norm(self.act(self.up(value))))
        return found


def step(model: Any) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    loss = model(torch.rand(16, 8)).square().mean()
    loss.backward()
    gradients = [each.grad for each in model.parameters()]
    state = torch.rand(1)
    return loss.detach(), *(each for each in gradients if each is not None), state


def test_fused_kernels_and_optimizers() -> None:
    """All in one, as compiling takes long."""
    torch.manual_seed(0)
    model = nn.Sequential(Gated(16))
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    update = torch.compile(optimizer.step)

    def train() -> tuple[torch.Tensor, ...]:
        optimizer.zero_grad()
        found = step(compiled)
        update()
        return found

    with profile() as first:
        measured = train()
    graphs = dict(torch._dynamo.utils.counters["stats"])
    assert all(map(torch.equal, train(), measured))
    with profile() as prof:
        for _ in range(5):
            assert all(map(torch.equal, train(), measured))
    assert dict(torch._dynamo.utils.counters["stats"]) == graphs
    found = prof.profile
    assert sum(row.self_ns for row in found.rows()) == found.wall_ns
    assert found.not_measured == first.profile.not_measured == ()
    rows = {row.name: row for row in found.rows()}
    for phase in "forward", "backward":
        calls = {name: row.phases[phase].calls for name, row in rows.items()}
        assert calls["Sequential.0.up"] == calls["Sequential.0"] == 5
    fused = [name for name in rows if ".fused: " in name]
    assert "Sequential.0.fused: act + norm" in fused
    assert all(rows[name].class_name == "fused kernel" for name in fused)
    assert rows["(optimizer) SGD"].calls == 5
    assert not any("optimizer" in path[-1] for path, _ in found.cells if len(path) > 1)
    report = prof.report(full=True)
    assert " % of the time in compiled code is in kernels of several modules" in report
    assert len(wrappers()) == 3


@pytest.mark.thorough
def test_code_in_cpp_is_one_line() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    compiled = torch.compile(model, options={"cpp_wrapper": True})
    before = step(compiled)
    with profile() as prof:
        assert all(map(torch.equal, step(compiled)[:1], before))
    (row,) = [row for row in prof.profile.rows() if row.kind == "module"]
    assert (row.name, row.calls) == ("Sequential", 1)
    (reason,) = prof.profile.not_measured
    assert reason.endswith(f"Sequential [compiled]: {CHANGED}")


@pytest.mark.thorough
def test_compiled_packages_are_time_of_who_calls_them(tmp_path: Path) -> None:
    given = torch.rand(2, 8)
    package = torch._inductor.aoti_compile_and_package(
        torch.export.export(nn.Linear(8, 8), (given,)),
        package_path=str(tmp_path / "linear.pt2"),
    )
    run = torch._inductor.aoti_load_package(package)

    class Calls(nn.Module):
        def forward(self, value: torch.Tensor) -> Any:
            return run(value)

    model = Calls()
    expected = model(given)
    with torch.no_grad(), profile() as prof:
        assert torch.equal(model(given), expected)
    assert [r.name for r in prof.profile.rows() if r.kind == "module"] == ["Calls"]
    assert not prof.profile.not_measured


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down(self.up(value))
        return found


def test_traces_have_modules_in_compiled_code(tmp_path: Path) -> None:
    """Also if it was compiled while no step was traced."""
    model, functions = torch.compile(Two()), [place.read() for place in in_torch()]
    with ProfilerHook(1, output_dir=tmp_path) as hook:
        for _ in range(2):
            model(torch.ones(2, 4))
            hook.step()
    (path,) = hook.paths
    slices = Trace(path).slices("modules")
    found = [(depth, name) for depth, kind, name in slices if kind == "forward"]
    assert found == [(1, "Two"), (2, "Two.up"), (2, "Two.down")]
    assert all(map(operator.is_, functions, (place.read() for place in in_torch())))


def test_a_number_alone_is_no_name_of_a_module_in_a_fused_kernel() -> None:
    around = ("LM", "LM.blocks")
    inside = (*around, "LM.blocks.0"), (*around, "LM.blocks.0", "LM.blocks.0.down")
    assert [short_name(path, around) for path in (around, *inside)] == [
        "(own)",
        "blocks.0",
        "blocks.0.down",
    ]
    assert short_name(inside[1], inside[0]) == "down"
    assert short_name(("Sequential.0",), ()) == "Sequential.0"
