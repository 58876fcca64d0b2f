"""What torch makes of a model while it is measured is what it makes of it anyway."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from tests.invisible import WITH_BUDGET, EveryLink
from tests.thorough import in_turns
from torchprof_hooks import (
    ProfilerHook,
    TrainingSession,
    add_hook,
    delete_hook,
    profile,
)

pytestmark = pytest.mark.filterwarnings("ignore")

X = torch.ones(2, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.b(self.a(x))
        return y.sin()


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return Net()


def exported(model: nn.Module, strict: bool, shapes: Any = None) -> str:
    made = torch.export.export(model, (X,), strict=strict, dynamic_shapes=shapes)
    return str(made.graph_module.code)


ANY_BATCH = {"x": {0: torch.export.Dim("batch")}}
#: What torch makes of a model, as text.
MAKERS: dict[str, Callable[[nn.Module], str]] = {
    "export, strict": lambda model: exported(model, True),
    "export": lambda model: exported(model, False),
    "export, any batch": lambda model: exported(model, False, ANY_BATCH),
    "jit.script": lambda model: str(torch.jit.script(model).inlined_graph),
    "jit.trace": lambda model: str(torch.jit.trace(model, X).inlined_graph),
    "fx": lambda model: str(torch.fx.symbolic_trace(model).code),
    "make_fx": lambda model: str(make_fx(model)(X).code),
}


def made(maker: str, model: nn.Module) -> str:
    torch._dynamo.reset()
    text = MAKERS[maker](model)
    # Without the numbers that torch gives to classes, values and lines.
    return re.sub(r"#.*|__torch_mangle_\d+\.|0x\w+|%[\w.]+", "", text)


@contextmanager
def on_modules(model: nn.Module) -> Iterator[None]:
    for module in model.modules():
        add_hook(module, EveryLink())
    yield
    for module in model.modules():
        delete_hook(module, "EveryLink")


@pytest.fixture(scope="module")
def bare() -> dict[str, str]:
    return {maker: made(maker, new_model()) for maker in MAKERS}


def test_in_a_step_that_is_traced(bare: dict[str, str], tmp_path: Path) -> None:
    model, maker = new_model(), "export, strict"
    with TrainingSession([ProfilerHook(save_steps=1, output_dir=tmp_path)]) as session:
        texts = [session.run(made, maker, model) for _ in range(2)]
    assert texts == [bare[maker]] * 2


@pytest.mark.parametrize(
    ("measurer", "maker"), in_turns(product(WITH_BUDGET, MAKERS), 0, 4)
)
def test_of_a_model_that_is_measured(
    measurer: str, maker: str, bare: dict[str, str]
) -> None:
    model = new_model()
    with WITH_BUDGET[measurer]():
        model(X).sum().backward()
        assert made(maker, model) == bare[maker]
        model(X)


@pytest.mark.parametrize("maker", ["export, strict", "jit.script", "jit.trace", "fx"])
def test_of_a_model_with_hooks_on_its_modules(maker: str, bare: dict[str, str]) -> None:
    model = new_model()
    with on_modules(model):
        before = tables(model)
        found = made(maker, model)
        assert tables(model) == before
    if maker != "export, strict":  # which names what it finds in hooks after them
        assert found == bare[maker]


def tables(model: nn.Module) -> list[list[tuple[int, Any]]]:
    """All hooks in the modules' own tables, in their order."""
    return [
        list(table.items())
        for module in model.modules()
        for name, table in vars(module).items()
        if "hook" in name and isinstance(table, dict)
    ]


def test_hooks_of_the_program_are_scripted_all_the_same() -> None:
    model = new_model()
    model.register_forward_pre_hook(doubled)
    scripted = torch.jit.script(model)
    with on_modules(model):
        hooked = torch.jit.script(model)
    assert torch.equal(scripted(X), hooked(X))
    assert not torch.equal(hooked(X), new_model()(X))


def doubled(self: Any, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
    return (args[0] * 2,)


def test_modules_are_seen_after_an_export() -> None:
    model = new_model()
    with profile() as prof:
        for strict in (True, False):
            exported(model, strict)
        model(X)
    calls = {row.name: row.calls for row in prof.profile.rows()}
    assert calls["Net.b.0"] >= 1
    assert not prof.profile.aborted_calls
