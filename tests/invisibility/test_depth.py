"""How deep a model may be nested: as deep as with empty hooks on all modules, but for
two."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as nn_module

from tests.helpers import in_thread
from torchprof_hooks import profile
from torchprof_hooks.link_hooks import TimerHook

# torch warns of a hook that had no room either when a forward had none.
pytestmark = pytest.mark.filterwarnings("ignore:global module forward hook")

MAKERS: dict[str, Callable[[], Any]] = {
    "profile()": profile,
    "profile(functions)": lambda: profile(functions=True),
    "profile(memory)": lambda: profile(memory=True),
    "profile(every)": lambda: profile(steps=1, every=2),
    "link timer": TimerHook,
}
#: So many modules fewer than with empty hooks.
FEWER = 2
X = torch.ones(1, 2)


class Nest(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)


@contextmanager
def empty_hooks() -> Iterator[None]:
    hooks = [
        nn_module.register_module_forward_pre_hook(lambda module, args: None),
        nn_module.register_module_forward_hook(lambda module, args, outputs: None),
    ]
    yield
    for hook in hooks:
        hook.remove()


def has_room(make: Callable[[], Any], depth: int) -> bool:
    """Whether so many modules inside of each other can be called."""
    model: nn.Module = nn.Linear(2, 2)
    for _ in range(depth - 1):
        model = Nest(model)

    def call() -> bool:
        with make():
            try:
                model(X)
            except RecursionError:
                return False
        return True

    return in_thread(call)  # where nothing has been called yet


@pytest.fixture(scope="module", autouse=True)
def usual_limit() -> Iterator[None]:
    """Python's own, which torch raises where it has compiled something."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.fixture(scope="module")
def deepest(usual_limit: None) -> int:
    """With empty hooks."""
    least, most = 50, 400
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (
            (middle, most) if has_room(empty_hooks, middle) else (least, middle)
        )
    return least


@pytest.mark.parametrize("name", MAKERS)
def test_there_is_room_for_nearly_as_many_modules(name: str, deepest: int) -> None:
    assert deepest > 150
    assert has_room(MAKERS[name], 2)  # the first time, it takes some more frames
    assert has_room(MAKERS[name], deepest - FEWER)


@pytest.mark.parametrize("functions", [True, False])
def test_a_model_that_is_too_deep_leaves_nothing_open(functions: bool) -> None:
    prof = profile(functions=functions)
    assert not has_room(lambda: prof, 400)
    with prof:
        Nest(nn.Linear(2, 2))(X).sum().backward()
    cells = prof.profile.cells
    assert min(totals.self_ns for totals in cells.values()) >= 0
    assert cells[("Nest", "Nest.inner"), "backward"].calls == 1
    assert sum(totals.self_ns for totals in cells.values()) == prof.profile.wall_ns
