"""Functions that reports show by themselves."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from torchprof_hooks import Profile, profile, profile_function

pytestmark = pytest.mark.usefixtures("ticking")


def double(x: torch.Tensor, *, plus: float = 0.0) -> torch.Tensor:
    """Twice."""
    return 2 * x + plus


named = profile_function(double, "doubling")


@profile_function
def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


def paths(found: Profile) -> set[tuple[str, ...]]:
    return {path for path, _ in found.cells}


def test_it_is_the_same_function() -> None:
    assert named(torch.ones(1), plus=1.0).item() == 3.0
    assert (named.__name__, named.__doc__) == ("double", "Twice.")
    assert pickle.loads(pickle.dumps(train_step)) is train_step


def test_a_name_of_its_own_and_where_it_was_made() -> None:
    with profile() as prof:
        named(torch.ones(1))
    info = prof.profile.modules["doubling"]
    assert info.class_name == "doubling"
    line = double.__code__.co_firstlineno + 5  # at `named = ...`
    assert info.place == f"made at test_profile_function.py:{line}"


def test_exceptions_pass() -> None:
    def fails() -> None:
        raise KeyError("mine")

    failing = profile_function(fails)
    with profile() as prof, pytest.raises(KeyError, match="mine"):
        failing()
    assert prof.profile.aborted_calls == 1
    with pytest.raises(KeyError, match="mine"):
        failing()


def test_it_can_be_compiled() -> None:
    compiled = torch.compile(named, backend="eager", fullgraph=True)
    assert compiled(torch.ones(1)).item() == 2.0


def generator() -> Iterator[int]:
    yield 1


async def coroutine() -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("wrong", [generator, coroutine])
def test_what_is_no_plain_function(wrong: Any) -> None:
    with pytest.raises(TypeError, match="function must be a plain function"):
        profile_function(wrong)


def test_models_and_other_functions_in_it() -> None:
    model = nn.Sequential(nn.Linear(3, 1))

    def evaluate(call: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return named(call(torch.ones(1, 3)))

    with profile() as prof:
        profile_function(evaluate)(model)
        model(torch.ones(1, 3))
    assert ("evaluate", "doubling") in paths(prof.profile)
    # Models have the names that they have outside.
    assert ("evaluate", "Sequential", "Sequential.0") in paths(prof.profile)
    assert ("Sequential", "Sequential.0") in paths(prof.profile)
