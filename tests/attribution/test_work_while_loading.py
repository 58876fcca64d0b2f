"""What is done while a DataLoader fetches a batch is loading data, whatever it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import torchprof_hooks
from tests.exact import own_ms
from tests.fake_clock import MS, burn
from tests.planted import Work

pytestmark = pytest.mark.usefixtures("clock")


class Samples(Dataset[torch.Tensor]):
    """Four samples, each of which is what `work` makes of it."""

    def __init__(self, work: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.work = work

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.work(torch.full((3,), float(index)))


class Normalize(nn.Module):
    """A transform, as torchvision has them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        burn(2)
        return x / 2


def learn(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """A step of training for each sample."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def work(x: torch.Tensor) -> torch.Tensor:
        model(x).sum().backward()
        optimizer.step()
        return x

    return work


def without_gradients(work: nn.Module) -> Callable[[list[torch.Tensor]], Any]:
    return torch.no_grad()(lambda batch: work(torch.stack(batch)))


#: Loaders of two batches, and the milliseconds that both take.
LOADERS: dict[str, tuple[Callable[[], Any], float]] = {
    "transforms": (
        lambda: DataLoader(Samples(nn.Sequential(Normalize(), Normalize())), 2),
        16,
    ),
    "model in a collate_fn": (
        lambda: DataLoader(Samples(abs), 2, collate_fn=without_gradients(Work(5, 0))),
        10,
    ),
    "training for each sample": (lambda: DataLoader(Samples(learn(Work(3, 4))), 2), 28),
}


def train(model: nn.Module, loader: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("options", [{}, {"functions": True, "memory": True}])
@pytest.mark.parametrize("name", LOADERS)
def test_it_is_loading_data(name: str, options: Any) -> None:
    make, loading_ms = LOADERS[name]
    model, loader = Work(7, 9), make()
    with torchprof_hooks.profile(**options) as prof:
        train(model, loader)
    profile = prof.profile
    rows = {row.name: row for row in profile.rows()}
    assert [name for name in rows if not name.startswith("(")] == ["Work"]
    assert rows["(data loading)"].self_ns == loading_ms * MS
    assert rows["Work"].phases["forward"].self_ns == 14 * MS
    assert rows["Work"].phases["backward"].self_ns == 18 * MS
    assert (rows["Work"].calls, profile.steps, profile.aborted_calls) == (2, 2, 0)


def test_the_model_that_loads_is_the_one_that_is_trained() -> None:
    model = Work(7, 9)

    class Asks(nn.Module):
        """Loads in its forward, by calls of a module that is open around it."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = model
            self.loader = DataLoader(Samples(torch.no_grad()(self)), 2)
            self.is_asked = False

        def forward(self, x: torch.Tensor) -> Any:
            if self.is_asked:
                burn(1)
                return x
            self.is_asked = True
            batches = list(self.loader)
            self.is_asked = False
            return self.inner(batches[0] + x)

    asks = Asks()
    with torchprof_hooks.profile() as prof:
        asks(torch.ones(3)).sum().backward()
    assert own_ms(prof.profile) == {
        ("(data loading)", "data"): 4,
        ("Asks.inner", "forward"): 7,
        ("Asks.inner", "backward"): 9,
    }
    assert prof.profile.aborted_calls == 0
