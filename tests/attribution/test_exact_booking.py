"""Where time is booked that is spent in between, and how it is added up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils.data import DataLoader

from tests.cores import NATIVE_CORE
from tests.doing import Does, X
from tests.exact import calls, each_option, found, outside, own_in
from tests.fake_clock import MS, burn
from tests.planted import Work
from torchprof_hooks import Profile, profile
from torchprof_hooks.kernel.reference.span_log import FIELDS, FOLD_AT

pytestmark = pytest.mark.usefixtures("clock")


class HookedOutput(Work):
    """Has a hook on the tensor that it returns."""

    def __init__(self, backward_ms: int, hook_ms: int) -> None:
        super().__init__(1, backward_ms)
        self.hook_ms = hook_ms

    def forward(self, x: torch.Tensor) -> Any:
        y = super().forward(x)
        if self.hook_ms:
            y.register_hook(lambda gradient: burn(self.hook_ms) and None)
        return y


@NATIVE_CORE  # see the limits of the other
def test_a_hook_on_a_tensor_is_time_of_the_module_that_made_it() -> None:
    """The engine calls it before the node runs, as what came before is over."""
    model = nn.Sequential(HookedOutput(2, 40), HookedOutput(4, 0), HookedOutput(8, 70))
    with profile() as prof:
        model(torch.ones(3, requires_grad=True)).sum().backward()
    assert own_in(prof.profile, "backward") == {
        "Sequential.0": 42,
        "Sequential.1": 4,
        "Sequential.2": 78,
    }


def _in_front(y: torch.Tensor, hook: Callable[..., None]) -> None:
    node: Any = y.grad_fn
    node.register_prehook(hook)


def _behind(y: torch.Tensor, hook: Callable[..., None]) -> None:
    node: Any = y.grad_fn
    node.register_hook(hook)


#: Ways to have a hook called when a pass comes to a tensor.
HOOKS: dict[str, Callable[[torch.Tensor, Callable[..., None]], object]] = {
    "of a tensor": torch.Tensor.register_hook,
    "in front of a node": _in_front,
    "behind a node": _behind,
    "of several": lambda y, hook: register_multi_grad_hook([y], hook),
}


class Solves(Work):
    """Has hooks on its output that run a pass of its solver, as deep equilibrium layers
    do, and work on."""

    def __init__(self, way: str) -> None:
        super().__init__(1, 20)
        self.solver = Work(2, 25)
        self.add_hook = HOOKS[way]

    def forward(self, x: torch.Tensor) -> Any:
        y = super().forward(x)
        start = y.detach().requires_grad_()
        again = self.solver(start).sum()

        def solve(*_: Any) -> None:
            torch.autograd.grad(again, start, retain_graph=True)
            burn(16)

        for _ in range(2):
            self.add_hook(y, solve)
        return y


@each_option
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("way", HOOKS)
def test_a_pass_in_a_hook_is_time_of_its_own_nodes(
    way: str, is_first: bool, options: Any
) -> None:
    model = nn.Sequential(Work(4, 10), Solves(way), Work(8, 30))[: 2 if is_first else 3]
    with profile(**options) as prof:
        model(torch.ones(3, requires_grad=True)).sum().backward()
    assert own_in(prof.profile, "backward") == {
        "Sequential.0": 10,
        "Sequential.1": 20 + 2 * 16,
        "Sequential.1.solver": 2 * 25,
        **({} if is_first else {"Sequential.2": 30}),
    }
    assert found(prof.profile)["Sequential.1.solver", "backward"] == calls(25, 25)


def booked(found: Profile) -> dict[tuple[tuple[str, ...], str], tuple[int, int]]:
    """Calls and own milliseconds of each cell, but for passes that took none."""
    return {
        key: (totals.calls, totals.self_ns // MS)
        for key, totals in found.cells.items()
        if totals.self_ns or (totals.calls and "(" not in key[0][-1])
    }


def test_what_interrupts_a_call_is_not_its_time() -> None:
    class Interrupted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Work(1, 2)
            self.optimizer = torch.optim.SGD(self.inner.parameters(), 0.0)

        def forward(self, x: torch.Tensor) -> Any:
            burn(16)
            for row in DataLoader(rows, batch_size=None):
                x = x + row
            self.inner(x).sum().backward()
            burn(32)
            self.optimizer.step(self.closure)
            burn(64)
            return x

        def closure(self) -> float:
            burn(128)
            seen.append(prof.profile)
            return 0.0

    class Rows(list[torch.Tensor]):
        def __getitem__(self, index: Any) -> Any:
            burn(4)
            return super().__getitem__(index)

    rows: Any = Rows([X, X])
    seen: list[Profile] = []
    model = Interrupted()
    burn(1000)
    with profile() as prof:
        burn(256)
        model(X)
        burn(512)
    name, inner = "Interrupted", "Interrupted.inner"
    in_closure = {
        ((name,), "forward"): (0, 16 + 32),
        ((name, inner), "forward"): (1, 1),
        ((name,), "backward"): (1, 0),
        ((name, inner), "backward"): (1, 2),
        (("(data loading)",), "data"): (2, 2 * 4),
        (("(outside modules)",), "outside"): (0, 256 + 128),
    }
    in_the_end = {
        **in_closure,
        ((name,), "forward"): (1, 16 + 32 + 64),
        (("(outside modules)",), "outside"): (0, 256 + 128 + 512),
    }
    for measured, known in ((seen[0], in_closure), (prof.profile, in_the_end)):
        assert booked(measured) == known
        assert sum(ms for _, ms in known.values()) * MS == measured.wall_ns


def test_sums_go_on_when_the_log_is_folded() -> None:
    """That of the reference core, again and again."""
    inner = Does(lambda: burn(next(durations)))
    model, times = nn.Sequential(inner), [5, 1, *[3] * (FOLD_AT // FIELDS), 1, 7]
    durations = iter(times)
    with profile() as prof:
        for _ in times:
            model(X)
        burn(5)
    assert found(prof.profile) == {
        ("Sequential", "forward"): calls(*times, own=0),
        ("Sequential.0", "forward"): calls(*times),
        **outside(5),
    }
