"""Ways to have something done in the middle of something else that is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import distributed, nn
from torch.autograd import Variable
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset

from tests.planted import Work

X = torch.ones(3)


class Does(nn.Module):
    """Does something in forward."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self.work = work

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.work()
        return x


class DoesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, work: Callable[[], object]) -> Any:
        ctx.work = work
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.work()
        return gradient, None


class Net(nn.Module):
    """Does something in the backward of its own, between those of two others."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self.first, self.last, self.work = Work(1, 4), Work(2, 8), work

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(DoesInBackward.apply(self.first(x), self.work))


class SGDThat(torch.optim.SGD):
    work: Callable[[], object]

    def step(self, closure: Any = None) -> Any:
        self.work()


class RowsThat(IterableDataset[torch.Tensor]):
    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.work()
        yield X


def in_forward(work: Callable[[], object]) -> None:
    nn.Sequential(Does(work))(X)


def in_backward(work: Callable[[], object]) -> None:
    Net(work)(X).sum().backward()


def in_optimizer(work: Callable[[], object]) -> None:
    optimizer: Any = SGDThat([nn.Parameter(X)], 0.1)
    optimizer.work = work
    optimizer.step()


def in_loading(work: Callable[[], object]) -> None:
    next(iter(DataLoader(RowsThat(work), batch_size=None)))


def in_recomputation(work: Callable[[], object]) -> None:
    def only_again() -> None:
        if torch._C._current_graph_task_id() != -1:
            work()

    model = nn.Sequential(Does(only_again), Work(1, 4))
    x = X.clone().requires_grad_()
    checkpoint(model, x, use_reentrant=False).sum().backward()


class _Packed:
    """Does something where torch packs it to be sent."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work

    def __reduce__(self) -> Any:
        self.work()
        return int, ()


def in_communication(work: Callable[[], object]) -> None:
    """Needs the fixture `alone`."""
    distributed.all_gather_object([None], _Packed(work))


def at_the_end(tensor: torch.Tensor, work: Callable[[], object]) -> None:
    """Have `work` done when the pass through `tensor` has run all nodes."""

    def ask(gradient: torch.Tensor) -> None:
        queue: Any = Variable._execution_engine.queue_callback
        queue(work)

    tensor.register_hook(ask)
