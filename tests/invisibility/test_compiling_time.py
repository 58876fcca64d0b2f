"""What torch.compile takes is its own, and of no call: on a clock of the test's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from threading import Event
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import callback

from tests.cores import NATIVE_CORE
from tests.cost.loops import followed
from tests.fake_clock import MS, burn
from tests.helpers import in_thread
from torchprof_hooks import Profile, profile
from torchprof_hooks.profiles.names import COMPILING_NAME, GROUPINGS

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("clock")]


@pytest.fixture(autouse=True)
def each_shape_on_its_own(fresh_compiler: None) -> Iterator[None]:
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        yield


def backend(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """Takes 50 ms to compile a graph, which then takes 3 ms."""
    burn(50)

    def run(*args: Any) -> Any:
        burn(3)
        return graph.forward(*args)

    return run


class Burn(torch.autograd.Function):
    """Takes 1 ms forward, and 2 ms backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        burn(1)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        burn(2)
        return grad


class Outer(nn.Module):
    def __init__(self, inner: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        burn(10)
        return Burn.apply(self.inner(x))


def own_ms(found: Profile) -> dict[str, float]:
    """Own times of rows that took any, all phases together."""
    rows = {row.name: row.self_ns / MS for row in found.rows() if row.self_ns}
    assert sum(rows.values()) * MS == found.wall_ns
    return rows


@pytest.mark.parametrize(
    "options", [{}, {"functions": True}, {"memory": "cpu"}, {"steps": 20}]
)
def test_it_is_not_the_time_of_the_call(options: Any) -> None:
    model = Outer(torch.compile(nn.Linear(4, 4), backend=backend))
    with profile(**options) as prof:
        for length in (2, 2, 3):
            model(torch.ones(length, 4)).sum().backward()
    found = prof.profile
    rows = {row.name: row for row in found.rows()}
    assert rows[COMPILING_NAME].calls == 2
    assert own_ms(found) == {
        "Outer": 3 * 13,
        "Outer.inner": 3 * 3,
        COMPILING_NAME: 2 * 50,
    }
    assert rows["Outer"].phases["forward"].cumulative_ns % (14 * MS) == 0
    assert not found.aborted_calls


@NATIVE_CORE
def test_functions_that_are_compiled() -> None:
    compiled = torch.compile(lambda x: x.sin(), backend=backend)
    with profile(functions=True) as prof:
        for _ in range(3):
            Burn.apply(compiled(torch.ones(2, requires_grad=True))).sum().backward()
    by_function = {row.name: row.self_ns / MS for row in prof.profile.rows("function")}
    assert by_function["Burn"] == 3 * 3
    assert by_function[COMPILING_NAME] == 50


def test_a_compilation_that_fails() -> None:
    def failing(graph: Any, inputs: Any) -> Any:
        burn(50)
        raise ValueError("no such luck")

    model = Outer(torch.compile(nn.Linear(4, 4), backend=failing))
    with profile() as prof:
        with pytest.raises(Exception, match="no such luck"):
            model(torch.ones(2, 4))
        burn(5)
    assert own_ms(prof.profile) == {
        "Outer": 10,
        COMPILING_NAME: 50,
        "(outside modules)": 5,
    }


def test_another_thread_that_compiles() -> None:
    model = Outer(torch.compile(nn.Linear(4, 4), backend=backend))
    with profile() as prof:
        in_thread(lambda: model(torch.ones(2, 4)))
    assert own_ms(prof.profile) == {"(outside modules)": 64}


# Whole programs


def train(model: nn.Module, lengths: tuple[int, ...]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for length in lengths:
        burn(7)
        model(torch.ones(length, 4)).sum().backward()
        optimizer.step()


LENGTHS = (2, 2, 2, 3, 3, 4, 4, 5, 5, 5)


def test_sections_of_a_program_add_up() -> None:
    """In whichever of its steps it compiled."""
    model = Outer(torch.compile(nn.Linear(4, 4), backend=backend))
    with followed(functions=True) as steps:
        train(model, LENGTHS)
    found = steps.profile()
    wall_ns = len(LENGTHS) * (7 + 10 + 3 + 3) * MS + 4 * 50 * MS
    assert found.wall_ns == wall_ns
    for by in GROUPINGS:
        rows = {row.name: row.self_ns for row in found.rows(by)}
        assert sum(rows.values()) == wall_ns
        assert rows[COMPILING_NAME] == 4 * 50 * MS
    cells = found.cells.items()
    of_model = sum(t.self_ns for (path, _), t in cells if path[0] == "Outer")
    assert of_model == len(LENGTHS) * 16 * MS


def test_compilations_that_overlap_end_in_their_own_threads() -> None:
    """Another thread compiles a backward, from before the end of this one's
    compilation until after this one's profile."""
    is_here, is_there, may_end = Event(), Event(), Event()

    def elsewhere() -> float:
        assert is_here.wait(60)
        with profile() as other, compiling_backward():
            is_there.set()
            assert may_end.wait(60)
            burn(7)
        return own_ms(other.profile)[COMPILING_NAME]

    def slow_backend(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        is_here.set()
        assert is_there.wait(60)
        return backend(graph, inputs)

    inner, after = torch.compile(nn.Linear(4, 4), backend=slow_backend), Outer(abs)
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(elsewhere)
        with profile() as prof:
            Outer(inner)(torch.ones(2, 4))
            after(torch.ones(2))
        may_end.set()
        assert there.result(60) == 50 + 3 + 1 + 10 + 1 + 7
    assert own_ms(prof.profile)[COMPILING_NAME] == 50
    rows = {row.name: row.calls for row in prof.profile.rows() if row.kind == "module"}
    assert rows == {"Outer": 2, "Outer.inner": 1}  # two of one class


def compiling_backward() -> AbstractContextManager[None]:
    """In which torch compiles backward of what it has compiled, when that is called."""
    handler, kinds = callback.callback_handler, callback.CallbackTrigger
    return handler.install_callbacks(kinds.LAZY_BACKWARD, "0/0")
