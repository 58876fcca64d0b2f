"""Models, and ways to call them, that some tool gets wrong or fails with.

Their modules have planted work (`Work`). The first is one that all should get right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from accuracy.planted_work import ROWS, WIDTH, Planted, Work


class Model(nn.Module):
    """Modules by name, and a function of the model and its inputs that calls them."""

    def __init__(self, run: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def inputs(requires_grad: bool = True) -> Tensor:
    return torch.ones(ROWS, WIDTH, requires_grad=requires_grad)


def trained(model: nn.Module, *, input_grad: bool = True) -> Planted:
    """Forward and backward of a model with one tensor as input and as output.

    input_grad: as for a layer in the middle of a network; where that is not what a case
        is about, no tool should fail for its sake.
    """
    return Planted(
        lambda: model(inputs(input_grad)).sum().backward(),
        (model,),
    )


def chain(*, input_grad: bool = True) -> Planted:
    model = Model(lambda m, x: m.b(m.a(x)), a=Work(), b=Work())
    return trained(model, input_grad=input_grad)


def shared_input() -> Planted:
    model = Model(
        lambda m, x: m.o(m.q(x) + m.k(x) + m.v(x)),
        **{name: Work() for name in "qkvo"},
    )
    return trained(model)


def towers() -> Planted:
    model = Model(
        lambda m, x: m.left(x) + m.right(x),
        left=nn.Sequential(Work(), Work()),
        right=nn.Sequential(Work()),
    )
    return trained(model, input_grad=False)


def keywords() -> Planted:
    model = Model(lambda m, x: m.second(x=m.first(x=x)), first=Work(), second=Work())
    return trained(model)


def called_twice() -> Planted:
    return trained(Model(lambda m, x: m.a(m.b(m.a(x))), a=Work(), b=Work()))


def two_names() -> Planted:
    shared = Work()
    model = Model(
        lambda m, x: m.decoder(m.encoder(x)),
        encoder=shared,
        decoder=nn.Sequential(shared, Work()),
    )
    return trained(model)


def inplace_relu() -> Planted:
    model = Model(
        lambda m, x: m.b(m.relu(m.a(x))),
        a=Work(),
        relu=nn.ReLU(inplace=True),
        b=Work(),
    )
    return trained(model)


def residual() -> Planted:
    def run(m: Any, x: Tensor) -> Any:
        y = m.a(x)
        y += x
        return m.b(y)

    return trained(Model(run, a=Work(), b=Work()))


@dataclass
class Output:
    """What a model returns that has more than one result."""

    hidden: list[Tensor]
    last: Tensor


def in_structure(wrap: Callable[[Any], Any], unwrap: Callable[[Any], Any]) -> Planted:
    """Blocks that return no plain tensor."""

    def block() -> nn.Module:
        return Model(lambda m, x: wrap(m.work(x)), work=Work())

    model = Model(
        lambda m, x: unwrap(m.second(unwrap(m.first(x)))), first=block(), second=block()
    )
    return trained(model)


def dict_output() -> Planted:
    return in_structure(lambda y: {"out": y}, lambda output: output["out"])


def dataclass_output() -> Planted:
    return in_structure(lambda y: Output([y], y), lambda output: output.last)


def without_parameters() -> Planted:
    model = Model(
        lambda m, x: m.b(m.idle(m.activation(m.a(x)))),
        a=Work(),
        activation=Work(parameter=False),
        idle=Work(0, 0, parameter=False),
        b=Work(),
    )
    return trained(model)


def side_loss() -> Planted:
    def run(m: Any, x: Tensor) -> Any:
        routed = m.router(x)
        m.loss = routed.square().mean()
        return m.expert(routed.detach())

    model: Any = Model(run, router=Work(), expert=Work())

    def step() -> None:
        output = model(inputs())
        (output.sum() + model.loss).backward()

    return Planted(step, (model,))


def frozen() -> Planted:
    model = Model(
        lambda m, x: m.c(m.b(m.a(x))),
        a=Work().requires_grad_(False),
        b=Work(),
        c=Work().requires_grad_(False),
    )
    return trained(model, input_grad=False)


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


#: How modules are put together, called and differentiated.
CASES: Mapping[str, Callable[[], Planted]] = {
    "two modules in a row": chain,
    "input without gradient": lambda: chain(input_grad=False),
    "q, k and v read one tensor": shared_input,
    "two towers on such an input": towers,
    "keyword-only calls": keywords,
    "module called twice": called_twice,
    "module under two names": two_names,
    "in-place ReLU": inplace_relu,
    "y += x after a module": residual,
    "dict as output": dict_output,
    "dataclass as output": dataclass_output,
    "modules without parameters": without_parameters,
    "loss left behind as an attribute": side_loss,
    "frozen parameters": frozen,
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
