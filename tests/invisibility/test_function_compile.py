"""torch.compile and function hooks: no graph break, and one function for a region."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.functions import ONE, Cube, FunctionRecorder, backward_pres, pres
from tests.invisibility.test_compile import Compiles
from torchprof_hooks.capture.core import CORE
from torchprof_hooks.function_hooks import MemoryProfileHook, TimerHook

pytestmark = pytest.mark.filterwarnings("ignore")

X = torch.ones(4, 8)


class GradInBackward(Cube):
    """Its backward runs with gradients enabled: as does a recomputation, and, up to
    torch 2.8, all that is compiled of a custom Function's backward."""

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            return 3 * x * x * gradients[0]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def plain(x: torch.Tensor) -> torch.Tensor:
    return (x @ x.T).relu().sum()


def custom(x: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(Cube.apply(x).relu().sum())


def custom_with_grad(x: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(GradInBackward.apply(x).relu().sum())


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


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@functions(plain, custom, custom_with_grad)
def test_a_compiled_function_is_one_function(function: Any, backend: str) -> None:
    compiled = torch.compile(function, backend=backend)
    x = X.clone().requires_grad_()
    with FunctionRecorder() as hook:
        torch.tanh(compiled(x)).backward()
        with torch.no_grad():
            compiled(x)
    # Were it run eagerly, matmul or Cube would be seen.
    assert pres(hook.events) == [function.__name__, "tanh", function.__name__]
    assert backward_pres(hook.events) == ["tanh", function.__name__]


def test_compiled_before_and_used_inside() -> None:
    compiled = torch.compile(plain, backend="eager")
    compiled(X)
    with torchprof_hooks.profile(functions=True) as prof:
        compiled(X)
        torch.relu(X)
    rows = {row.name: row for row in prof.profile.rows("function")}
    assert rows["plain"].calls == 1
    assert rows["plain"].compiled
    assert rows["relu"].calls == 1
    assert "matmul" not in rows


def test_a_region_with_graph_breaks_is_one_function_even_if_it_raises() -> None:
    @torch.compile(backend="eager")
    def broken(x: torch.Tensor, fails: bool) -> torch.Tensor:
        y = torch.relu(x)
        torch._dynamo.graph_break()
        if fails:
            raise RuntimeError("on purpose")
        return y.exp()

    with TimerHook() as hook:
        broken(X, False)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="on purpose"):
                broken(X, True)
            torch.tanh(X)
    called = {name: sums["occurrence"] for name, sums in hook.summary().items()}
    assert called == {"broken": 4, "tanh": 3}


@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_modules(in_place: bool) -> None:
    model: Any = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    if in_place:
        model.compile(backend="aot_eager")
    else:
        model = torch.compile(model, backend="aot_eager")
    with FunctionRecorder() as hook:
        model(X).sum().backward()
    assert pres(hook.events) == ["Sequential", "sum"]
    assert backward_pres(hook.events) == ["sum", "Sequential"]
    with torchprof_hooks.profile(functions=True) as prof:
        model(X).sum().backward(ONE)
    functions = {r.name for r in prof.profile.rows("function") if r.kind == "function"}
    assert functions == {"Sequential", "sum"}
