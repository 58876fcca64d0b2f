"""Tensors of the user's own classes, and modes, see what they would see without us."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from tests.functions import Cube
from tests.helpers import in_thread
from tests.invisible import MEASURERS, Measurer
from torchprof_hooks import profile
from torchprof_hooks.function_hooks import PrintHook

#: What classes and modes have seen.
SEEN: list[str] = []


def note(who: str, function: Any) -> None:
    owner = getattr(getattr(function, "__self__", None), "__name__", "")
    SEEN.append(f"{who} {getattr(function, '__qualname__', function)} {owner}")


class Named(torch.Tensor):
    """Is asked for every function, and for every attribute that is read."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        note("class", func)
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapper(torch.Tensor):
    """Is asked for every operator, and for its sizes and its device."""

    content: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made: Wrapper = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            dtype=inner.dtype,
            device=inner.device,
            requires_grad=inner.requires_grad,
            dispatch_sizes_strides_policy="sizes",
            dispatch_device=True,
        )
        made.content = inner
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        note("operator", func)
        args, kwargs = tree_map_only(cls, lambda t: t.content, (args, kwargs or {}))
        if func is torch.ops.prim.device.default:
            return args[0].device
        return tree_map_only(torch.Tensor, cls, func(*args, **kwargs))


class Functions(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        note("mode", func)
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        note("operators", func)
        return func(*args, **(kwargs or {}))


def new_model(kind: str) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(4, 4), nn.Linear(4, 2)
    if kind == "parameters":
        for layer in layers:
            layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Named))
    return nn.Sequential(layers[0], nn.ReLU(), layers[1])


INPUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "inputs": lambda x: x.as_subclass(Named),
    "wrapped": Wrapper,
}
MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "functions": Functions,
    "operators": Operators,
}
CLASSES = (*INPUTS, "parameters")
KINDS = (*CLASSES, *MODES, "functions, from outside")


def train(kind: str, measurer: Measurer = nullcontext) -> list[str]:
    """What is seen of two steps of training."""
    model = new_model(kind)
    x = INPUTS.get(kind, torch.clone)(torch.ones(2, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    mode = MODES.get(kind, nullcontext)
    outer = Functions() if kind == "functions, from outside" else nullcontext()
    SEEN.clear()
    with outer, measurer(), mode():
        for _ in range(2):
            y = Cube.apply(model(x))
            loss = nn.functional.mse_loss(y, torch.zeros(2, 2))
            (loss + torch.cat([y, y]).sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return SEEN.copy()


@pytest.fixture(scope="module")
def bare() -> dict[str, list[str]]:
    return {kind: train(kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("measurer", MEASURERS)
def test_they_see_what_they_would_see(
    measurer: str, kind: str, bare: dict[str, list[str]]
) -> None:
    assert bare[kind]
    assert train(kind, MEASURERS[measurer]) == bare[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLASSES)
def test_reports_ask_nobody(kind: str) -> None:
    with profile(functions=True) as prof:
        before = train(kind)
    in_thread(lambda: prof.profile)
    prof.print_report(file=io.StringIO())
    assert before == SEEN


def test_what_is_printed_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(2, 4)
    with PrintHook():
        torch.neg(x.as_subclass(Named))
        torch.neg(Wrapper(x))
    assert capsys.readouterr().out == (
        "forward neg\n  input float32[2, 4] cpu Named\n"
        "forward neg\n  input float32[?] ? Wrapper\n"
    )
