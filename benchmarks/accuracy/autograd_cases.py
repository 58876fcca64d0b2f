"""Ways to call models and run backward that some tool gets wrong, or fails with.

As in `attribution_cases`, modules have planted work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from accuracy.attribution_cases import Model, inputs, trained
from accuracy.planted_work import Planted, Work


class Other(Model):
    """A second model gets another name from every tool if it is of another class."""


def siamese() -> Planted:
    model = Model(lambda m, x: m.a(x), a=Work())
    head = Other(lambda m, x: m.head(x), head=Work())

    def step() -> None:
        left, right = model(inputs()), model(2 * inputs())
        head(left * right).sum().backward()

    return Planted(step, (model, head))


def adversaries() -> Planted:
    generator = Model(lambda m, x: m.g(x), g=Work())
    critic = Other(lambda m, x: m.c(x), c=Work())

    def step() -> None:
        fake = generator(inputs())
        critic(fake.detach()).sum().backward()
        critic(fake).sum().backward()

    return Planted(step, (generator, critic))


def checkpointed(reentrant: bool, nested: bool = False) -> Planted:
    """Long works: the checkpoint's own part takes one or two milliseconds."""

    def inner(m: Any, x: Tensor) -> Any:
        x = m.block[0](x)
        if nested:
            return checkpoint(m.block[1], x, use_reentrant=reentrant)
        return m.block[1](x)

    model = Model(
        lambda m, x: m.b(checkpoint(inner, m, m.a(x), use_reentrant=reentrant)),
        a=Work(12, 30),
        block=nn.Sequential(Work(12, 30), Work(12, 30)),
        b=Work(12, 30),
    )
    return trained(model)


def retained() -> Planted:
    model = Model(lambda m, x: m.b(m.a(x)), a=Work(), b=Work())

    def step() -> None:
        loss = model(inputs()).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    return Planted(step, (model,))


def double_backward() -> Planted:
    model = Model(lambda m, x: m.b(m.a(x)), a=Work(), b=Work())

    def step() -> None:
        x = inputs()
        (grad,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        grad.square().sum().backward()

    return Planted(step, (model,))


def partial_grad() -> Planted:
    model = Model(lambda m, x: m.a(x), a=Work())
    head = Other(lambda m, x: m.c(m.b(x)), b=Work(), c=Work())

    def step() -> None:
        hidden = model(inputs())
        torch.autograd.grad(head(hidden).sum(), hidden)

    return Planted(step, (model, head))


def without_gradients() -> Planted:
    model = Model(lambda m, x: m.b(m.a(x)), a=Work(), b=Work())

    def step() -> None:
        with torch.no_grad():
            model(inputs())

    return Planted(step, (model,))


def caught_exception() -> Planted:
    def run(m: Any, x: Tensor, fails: bool) -> Any:
        x = m.a(x)
        if fails:
            raise ValueError("a bad batch")
        return m.b(x)

    model = Model(run, a=Work(), b=Work())

    def step() -> None:
        try:
            model(inputs(), fails=True)
        except ValueError:
            model(inputs(), fails=False).sum().backward()

    return Planted(step, (model,))


#: How models are called and differentiated.
CASES: Mapping[str, Callable[[], Planted]] = {
    "two calls of a model, one backward": siamese,
    "two models, detached between": adversaries,
    "checkpoint, reentrant": lambda: checkpointed(reentrant=True),
    "checkpoint, not reentrant": lambda: checkpointed(reentrant=False),
    "checkpoints, nested": lambda: checkpointed(reentrant=False, nested=True),
    "two backward passes over one graph": retained,
    "double backward": double_backward,
    "torch.autograd.grad of a part": partial_grad,
    "no_grad": without_gradients,
    "exception in a forward, caught": caught_exception,
}
