"""torch.compile and function hooks: no graph break, and nothing inside of modules."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.functions import ONE, Cube, FunctionRecorder, backward_pres, pres
from tests.invisibility.test_compile import Compiles
from torchprof_hooks.function_hooks import MemoryProfileHook, TimerHook
from torchprof_hooks.kernel.core import CORE

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("fresh_compiler"),
]

X = torch.ones(4, 8)


def plain(x: torch.Tensor) -> torch.Tensor:
    return (x @ x.T).relu().sum()


def custom(x: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(Cube.apply(x).relu().sum())


def functions(*which: Callable[..., Any]) -> pytest.MarkDecorator:
    names = [function.__name__ for function in which]
    return pytest.mark.parametrize("function", which, ids=names)


HOOKS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "timer": TimerHook,
    "callbacks": FunctionRecorder,
    "profile": lambda: torchprof_hooks.profile(functions=True),
}
if CORE.module is not None:
    HOOKS["memory"] = MemoryProfileHook


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
@functions(plain, custom)
def test_no_graph_break_and_one_graph(function: Any, hook: Any) -> None:
    backend = Compiles()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    x = X.clone().requires_grad_()
    expected = function(x)
    (gradient,) = torch.autograd.grad(expected, x)
    with hook():
        for _ in range(3):
            out = compiled(x)
            assert torch.equal(out, expected)
            assert torch.equal(torch.autograd.grad(out, x)[0], gradient)
    assert backend.graphs == 1
    compiled(x)
    assert backend.graphs <= 2  # at most one recompilation


def test_a_compiled_function_is_what_the_compiler_made_of_it() -> None:
    compiled = torch.compile(plain, backend="aot_eager")
    x = X.clone().requires_grad_()
    with FunctionRecorder() as hook:
        torch.tanh(compiled(x)).backward()
    assert pres(hook.events)[0] == "CompiledFunction"
    assert backward_pres(hook.events) == ["tanh", "CompiledFunction"]
    if CORE.module is None:
        return  # no functions are measured
    with torchprof_hooks.profile(functions=True) as prof:
        compiled(x).backward()
    rows = {row.name: row for row in prof.profile.rows("function")}
    assert rows["CompiledFunction"].phases.keys() >= {"forward", "backward"}


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, value: torch.Tensor) -> Any:
        return self.inner(value)


@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_modules(in_place: bool) -> None:
    model: Any = Outer()  # torch would not compile a Sequential in place
    if in_place:
        model.compile(backend="aot_eager")
    else:
        model = torch.compile(model, backend="aot_eager")
    with FunctionRecorder() as hook:
        model(X).sum().backward()
    assert pres(hook.events) == ["sum"]
    with torchprof_hooks.profile(functions=True) as prof:
        model(X).sum().backward(ONE)
    rows = [row for row in prof.profile.rows("function") if row.kind == "function"]
    called = {row.name for row in rows if row.phases["forward"].calls}
    assert called == ({"sum"} if CORE.module else set())
