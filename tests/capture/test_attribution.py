"""Every case in which some tool books backward time on the wrong module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.fake_clock import MS, burn
from tests.planted import Work, check
from torchprof_hooks import Profile

pytestmark = pytest.mark.usefixtures("clock")


def backward_calls(profile: Profile, name: str) -> int:
    return next(r for r in profile.rows() if r.name == name).phases["backward"].calls


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = Work(3, 5), Work(3, 5), Work(3, 5)
        self.o = Work(2, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.o(self.q(x) + self.k(x) + self.v(x))


@pytest.mark.parametrize("input_grad", [True, False])
def test_q_k_v_share_an_input(input_grad: bool) -> None:
    model = Attention()
    x = torch.ones(3, requires_grad=input_grad)
    profile = check(lambda: model(x).sum().backward(), model)
    assert backward_calls(profile, "Attention") == 1
    assert backward_calls(profile, "Attention.q") == 1


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Sequential(Work(), Work()), nn.Sequential(Work(2, 9))

    def forward(self, x: torch.Tensor) -> Any:
        return self.a(x) + self.b(x)


def test_towers_on_an_input_without_gradient() -> None:
    model = Towers()
    check(lambda: model(torch.ones(3)).sum().backward(), model)


class KeywordsOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Work(2, 4), Work(3, 6)

    def forward(self, *, x: torch.Tensor) -> Any:
        return {"out": self.second(x=self.first(x=x))}


def test_keyword_only_calls() -> None:
    model = KeywordsOnly()
    check(lambda: model(x=torch.ones(3))["out"].sum().backward(), model)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.again, self.between = Work(2, 4), Work(3, 5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.again(self.between(self.again(x)))


def test_module_called_twice() -> None:
    model = Twice()
    profile = check(lambda: model(torch.ones(3)).sum().backward(), model)
    assert backward_calls(profile, "Twice.again") == 2


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Work(2, 5)
        self.decoder = nn.Sequential(self.encoder, Work())

    def forward(self, x: torch.Tensor) -> Any:
        return self.decoder(self.encoder(x))


def test_shared_module_has_one_row_under_its_first_path() -> None:
    model = Shared()
    profile = check(lambda: model(torch.ones(3)).sum().backward(), model)
    rows = {row.name: row for row in profile.rows()}
    assert rows["Shared.encoder"].aliases == ("Shared.decoder.0",)
    assert rows["Shared.encoder"].calls == 2
    assert "Shared.decoder.0" not in rows


class Inplace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.relu, self.b = Work(), nn.ReLU(inplace=True), Work(2, 8)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.a(x)
        y += x
        z = self.b(self.relu(y))
        z += x
        return z


def test_inplace_after_a_module() -> None:
    model = Inplace()
    check(lambda: model(torch.ones(3, requires_grad=True)).sum().backward(), model)


@dataclass
class Output:
    hidden: list[torch.Tensor]
    last: torch.Tensor


class Opaque:
    def __init__(self, last: torch.Tensor) -> None:
        self.last = last


OUTPUTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "dict": (lambda y: {"a": y}, lambda out: out["a"]),
    "list": (lambda y: [y, y], lambda out: out[1]),
    "nested": (lambda y: {"a": [(y, None)]}, lambda out: out["a"][0][0]),
    "dataclass": (lambda y: Output([y], y), lambda out: out.last),
    "opaque": (Opaque, lambda out: out.last),
}


class Wrapped(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner, self.outer = Work(2, 4), Work(3, 6)
        self.wrap, self.unwrap = OUTPUTS[kind]

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(self.outer(self.inner(x)))


@pytest.mark.parametrize("kind", OUTPUTS)
def test_outputs_of_any_structure(kind: str) -> None:
    model = Wrapped(kind)
    check(lambda: model.unwrap(model(torch.ones(3))).sum().backward(), model)


class SideLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.expert = Work(2, 7), Work(3, 4)
        self.loss = torch.zeros(())

    def forward(self, x: torch.Tensor) -> Any:
        routed = self.router(x)
        self.loss = routed.square().mean()
        return self.expert(routed.detach())


def test_loss_that_a_module_leaves_behind() -> None:
    model = SideLoss()

    def both() -> None:
        output = model(torch.ones(3))
        (output.sum() + model.loss).backward()

    def loss_alone() -> None:
        model(torch.ones(3))
        model.loss.backward()

    check(both, model)
    check(loss_alone, model)


def test_module_without_work_of_its_own_gets_none() -> None:
    model = nn.Sequential(Work(), nn.Flatten(0), Work(), nn.Identity())
    profile = check(lambda: model(torch.ones(3)).sum().backward(), model)
    for row in profile.rows():
        if row.class_name in ("Flatten", "Identity"):
            assert row.self_ns == 0


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool, nested: bool) -> None:
        super().__init__()
        self.reentrant, self.nested = reentrant, nested
        self.before = Work(2, 3)
        self.block = nn.Sequential(Work(12, 20), nn.Sequential(Work(10, 24)))
        self.after = Work(2, 4)

    def inner(self, x: torch.Tensor) -> Any:
        x = self.block[0](x)
        if self.nested:
            return checkpoint(self.block[1], x, use_reentrant=self.reentrant)
        return self.block[1](x)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.before(x)
        x = checkpoint(self.inner, x, use_reentrant=self.reentrant)
        return self.after(x)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_a_phase_of_its_own(reentrant: bool, nested: bool) -> None:
    model = Checkpointed(reentrant, nested)
    profile = check(lambda: model(torch.ones(3)).sum().backward(), model)
    rows = {row.name: row for row in profile.rows()}
    recomputed = rows["Checkpointed.block.0"].phases["recompute"]
    assert recomputed.calls == 1
    assert recomputed.self_ns == 12 * MS
    assert profile.aborted_calls == 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_around_a_whole_module(reentrant: bool) -> None:
    model = nn.Sequential(Work(5, 12), Work(10, 15))

    def step() -> None:
        x = torch.ones(3, requires_grad=True)
        y = checkpoint(model, x, use_reentrant=reentrant)
        y.sum().backward()

    profile = check(step, model)
    tree = profile.tree()
    inner = next(n for _, n in tree.walk() if n.name == "Sequential.1")
    assert inner.phases["recompute"].cumulative_ns == 10 * MS
    outer = next(n for _, n in tree.walk() if n.name == "Sequential")
    assert inner in outer.children


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode: Callable[[], Any]) -> None:
    model = nn.Sequential(Work(), Work())

    def step() -> None:
        with mode():
            model(torch.ones(3))

    profile = check(step, model)
    assert backward_calls(profile, "Sequential") == 0


def test_frozen_modules_have_no_backward() -> None:
    model = nn.Sequential(Work().requires_grad_(False), Work())
    profile = check(lambda: model(torch.ones(3)).sum().backward(), model)
    assert backward_calls(profile, "Sequential.0") == 0
    assert backward_calls(profile, "Sequential.1") == 1


def test_several_forwards_before_one_backward() -> None:
    siamese, head = nn.Sequential(Work(2, 4)), nn.ModuleDict({"h": Work(2, 3)})
    x = torch.ones(3)

    def step() -> None:
        left, right = siamese(x), siamese(2 * x)
        head["h"](left * right).sum().backward()

    profile = check(step, siamese)
    assert backward_calls(profile, "Sequential") == 2


def test_adversarial_pair_of_models() -> None:
    class Generator(nn.Sequential): ...

    class Critic(nn.Sequential): ...

    generator, critic = Generator(Work(2, 5)), Critic(Work(3, 4))

    def step() -> None:
        fake = generator(torch.ones(3))
        critic(fake.detach()).sum().backward()
        critic(fake).sum().backward()

    check(step, generator, critic)


def test_gradient_accumulation_over_many_calls() -> None:
    cell = Work(0.5, 1.0)
    calls = 74

    def step() -> None:
        x = torch.ones(3)
        for _ in range(calls):
            x = cell(x)
        x.sum().backward()

    profile = check(step, cell)
    assert backward_calls(profile, "Work") == calls


@pytest.mark.parametrize(
    ("pack", "unpack"),
    [
        (lambda y: y, lambda y: y),
        (lambda y: (None, y), lambda ys: ys[1]),
        (lambda y: [y, torch.ones(3)], lambda ys: ys[0]),
        (lambda y: [torch.ones(3)] * 100 + [y], lambda ys: ys[-1]),
        (lambda y: ((y,),), lambda ys: ys[0][0]),
        (lambda y: {"y": y}, lambda ys: ys["y"]),
    ],
)
def test_graphs_keep_their_owners_however_outputs_are_packed(
    pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], torch.Tensor]
) -> None:
    class Packs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.work = Work(2, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return pack(self.work(x))

    model, other = Packs(), Work(0, 0)

    def step() -> None:
        outputs = model(torch.ones(3))
        for _ in range(65):  # whose graphs are gone
            other(torch.ones(3))
        unpack(outputs).sum().backward()

    profile = check(step, model)
    assert backward_calls(profile, "Packs.work") == 1


def test_second_backward_over_a_retained_graph() -> None:
    model = Attention()

    def step() -> None:
        y = model(torch.ones(3)).sum()
        y.backward(retain_graph=True)
        y.backward(retain_graph=True)
        y.backward()

    profile = check(step, model)
    assert backward_calls(profile, "Attention.k") == 3


def test_double_backward() -> None:
    model = nn.Sequential(Work(2, 3), Work(2, 5))

    def step() -> None:
        x = torch.ones(3, requires_grad=True)
        (grad,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        grad.square().sum().backward()

    check(step, model)


def test_double_backward_through_several_outermost_calls() -> None:
    class First(Work): ...

    first, second = First(2, 3), Work(2, 5)

    def step() -> None:
        x = torch.ones(3, requires_grad=True)
        loss = second(first(x)).square().sum()
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        grad.square().sum().backward()

    check(step, first, second)


def test_autograd_grad_of_a_part() -> None:
    class First(Work): ...

    class Second(Work): ...

    first, second, third = First(2, 3), Second(2, 5), Work(2, 4)

    def step() -> None:
        hidden = first(torch.ones(3))
        torch.autograd.grad(third(second(hidden)).sum(), hidden)

    profile = check(step, first, second, third)
    assert backward_calls(profile, "First") == 0


def test_inner_loop_with_gradients_inside_a_forward() -> None:
    class Meta(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = Work(2, 4), Work(3, 5)

        def forward(self, x: torch.Tensor) -> Any:
            loss = self.inner(x).square().sum()
            (grad,) = torch.autograd.grad(loss, self.inner.scale, create_graph=True)
            return self.outer(x * grad)

    model = Meta()
    check(lambda: model(torch.ones(3)).sum().backward(), model)


def test_module_defined_while_running() -> None:
    class Growing(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            if not hasattr(self, "late"):
                self.late = Work(2, 4)
            return nn.ReLU()(self.late(x))

    model = Growing()
    profile = check(lambda: model(torch.ones(3)).sum().backward(), model)
    assert "Growing.<ReLU>" in {row.name for row in profile.rows()}


def test_two_models_of_one_class_have_a_row_each() -> None:
    first, second = nn.Sequential(Work(2, 3)), nn.Sequential(Work(5, 7))

    def step() -> None:
        (first(torch.ones(3)) + second(torch.ones(3))).sum().backward()

    profile = check(step, first)
    rows = {row.name: row for row in profile.rows()}
    assert rows["Sequential#2.0"].self_ns == (5 + 7) * MS


def test_models_made_anew_for_every_step_share_a_row() -> None:
    def step() -> None:
        for _ in range(20):
            torch.nn.MSELoss()(
                torch.ones(2, requires_grad=True), torch.ones(2)
            ).backward()

    profile = check(step)
    (row,) = [row for row in profile.rows() if row.kind == "module"]
    assert (row.name, row.calls) == ("MSELoss", 20)


def test_replicas_are_booked_on_their_original() -> None:
    model = nn.Sequential(Work(2, 4))
    replicas = [model._replicate_for_data_parallel() for _ in range(2)]
    work = model[0]
    for replica in replicas:
        replica._modules["0"] = shallow = work._replicate_for_data_parallel()
        shallow.scale = work.scale

    def step() -> None:
        torch.cat([replica(torch.ones(3)) for replica in replicas]).sum().backward()

    profile = check(step, model)
    assert {r.name for r in profile.rows() if r.kind == "module"} == {
        "Sequential",
        "Sequential.0",
    }


def test_traced_graph_modules() -> None:
    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, m: nn.Module, qualified_name: str) -> bool:
            return isinstance(m, Work)

    original = Attention()
    model = torch.fx.GraphModule(original, Tracer().trace(original), "Traced")
    profile = check(lambda: model(torch.ones(3)).sum().backward(), model)
    assert backward_calls(profile, f"{type(model).__name__}.v") == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_scripted_submodules() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    model = nn.Sequential(Work(), scripted, Work())
    profile = check(lambda: model(torch.ones(3)).sum().backward(), model)
    rows = {row.name: row for row in profile.rows()}
    assert rows["Sequential.1"].class_name == "Sequential"
    assert rows["Sequential.1"].phases["backward"].calls == 1


def test_work_outside_modules_is_booked_on_nobody() -> None:
    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> Any:
            burn(5)
            return x.sum()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            burn(7)
            return grad.expand(3)

    model = nn.Sequential(Work())
    profile = check(lambda: Loss.apply(model(torch.ones(3))).backward(), model)
    rows = {row.name: row for row in profile.rows()}
    assert rows["(outside modules)"].self_ns == 5 * MS
    assert rows["(backward outside modules)"].self_ns == 7 * MS
