"""What tips say of code that was compiled again, by torch's own reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.build import profile_of
from torchprof_hooks.documents.build.tips import find_tips
from torchprof_hooks.documents.build.view import view_of
from torchprof_hooks.kernel.torch_names.compile_metrics import read_compilation
from torchprof_hooks.profiles.program import Program

X = torch.ones(2, 3)
Call = Callable[[Any], object]


@pytest.fixture(autouse=True)
def compiled_anew() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        yield
    torch._dynamo.reset()


def tip(function: Any, *calls: Call) -> str:
    """What is said of a function that is called so."""
    before = read_compilation()
    compiled = torch.compile(function, backend="eager")
    for call in calls:
        call(compiled)
    found = read_compilation().since(before)
    assert found.recompiles
    program = profile_of(program=Program("x.py", compilation=found))
    (text,) = find_tips(view_of(program))
    return str(text)


def add(x: torch.Tensor, y: Any = 1) -> torch.Tensor:
    result: torch.Tensor = x + y
    return result


def apply(x: torch.Tensor, function: Any) -> Any:
    return function(x)


#: Calls of `add` -> what the advice has.
OF_TENSORS: dict[str, tuple[Call, str]] = {
    "size": (lambda f: f(torch.ones(4, 3)), "mark_dynamic"),
    "type": (lambda f: f(X.double()), "inputs of one type"),
    "stride": (lambda f: f(torch.ones(3, 2).t()), ".contiguous()"),
    "gradients": (lambda f: torch.no_grad()(f)(X), "with gradients and without"),
    "inference": (lambda f: torch.inference_mode()(f)(X), "in inference mode"),
    "gradient": (lambda f: f(torch.ones(2, 3, requires_grad=True)), ".detach()"),
    "autocast": (lambda f: torch.autocast("cpu")(f)(X), "one setting of autocast"),
    "number": (lambda f: f(X, 3), "give it as a tensor"),
}


@pytest.mark.parametrize("change", OF_TENSORS)
def test_the_advice_fits_the_reason(change: str) -> None:
    call, advice = OF_TENSORS[change]
    text = tip(add, lambda f: f(X, 2) if change == "number" else f(X), call)
    assert advice in text
    assert ("mark_dynamic" in text) == (change == "size")


def test_a_model_that_is_trained_and_evaluated() -> None:
    model = nn.Sequential(nn.Dropout())
    text = tip(model, lambda f: (model.train(), f(X)), lambda f: (model.eval(), f(X)))
    assert "model.eval() need code for each" in text


def test_an_object_made_anew() -> None:
    text = tip(apply, lambda f: f(X, lambda y: y + 1), lambda f: f(X, lambda y: y + 2))
    assert "instead of making a new one for each call" in text


@pytest.mark.parametrize(
    ("first", "second"), [(X, torch.ones(2)), (X, torch.ones(2, 3, 1))]
)
def test_no_advice_where_none_is_known(first: Any, second: Any) -> None:
    text = tip(add, lambda f: f(first), lambda f: f(second))
    assert text.endswith("rank mismatch. expected 2, actual " + f"{second.dim()}).")
