"""Every case in which some tool books backward time on the wrong module.

Time is asserted by `check`: that of each `Work`, forward, backward and recompute, and
whole. Nothing else takes any. Tests besides look at how often who was called.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.fake_clock import MS
from tests.planted import Work, check
from torchprof_hooks import Profile, add_hook, profile
from torchprof_hooks.link_hooks import TimerHook

pytestmark = [
    pytest.mark.usefixtures("clock"),
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
]

X = torch.ones(3)


class Net(nn.Module):
    """Has some parts, and does something with them."""

    def __init__(self, does: Callable[[Any, Any], Any], **parts: nn.Module) -> None:
        super().__init__()
        self.does = does
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: torch.Tensor) -> Any:
        return self.does(self, x)


class First(Work): ...


class Second(Work): ...


def checked(step: Callable[[], object], *roots: nn.Module) -> Profile:
    """The profile of a step in which all time is booked where it was spent: that of
    functions, and that of modules alone, which is returned."""
    check(step, *roots, functions=True)
    profile = check(step, *roots)
    assert min(totals.self_ns for totals in profile.cells.values()) >= 0
    assert profile.aborted_calls == 0
    return profile


def calls(profile: Profile, phase: str = "backward") -> dict[str, int]:
    """Of each module in this phase."""
    phases = {r.name: dict[Any, Any](r.phases) for r in profile.rows("module")}
    modules = {row.name for row in profile.rows() if row.kind == "module"}
    return {name: phases[name][phase].calls for name in modules}


def train(model: nn.Module, input_grad: bool = False) -> Callable[[], object]:
    """A step of it."""
    return lambda: model(torch.ones(3, requires_grad=input_grad)).sum().backward()


def shared_input() -> Net:
    return Net(
        lambda net, x: net.o(net.q(x) + net.k(x) + net.v(x)),
        **{name: Work(3, 5) for name in "qkv"},
        o=Work(2, 3),
    )


def in_place(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = net.a(x)
    y += x
    z: torch.Tensor = net.b(net.relu(y))
    z += x
    return z


def differentiating(net: Any, x: torch.Tensor) -> Any:
    loss = net.inner(x).square().sum()
    (gradient,) = torch.autograd.grad(loss, net.inner.scale, create_graph=True)
    return net.outer(x * gradient)


def growing(net: Any, x: torch.Tensor) -> Any:
    if not hasattr(net, "late"):
        net.late = Work(2, 4)
    return nn.ReLU()(net.late(x))


def traced() -> nn.Module:
    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, m: nn.Module, qualified_name: str) -> bool:
            return isinstance(m, Work)

    net = shared_input()
    return torch.fx.GraphModule(net, Tracer().trace(net), "Traced")


def scripted() -> nn.Module:
    script = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    return nn.Sequential(Work(), script, Work())


def with_shared_part() -> Net:
    a = Work(2, 5)
    return Net(lambda net, x: net.b(net.a(x)), a=a, b=nn.Sequential(a, Work()))


#: Models that take a tensor and return one, and how often some of their parts have a
#: backward.
MODELS: dict[str, tuple[Callable[[], nn.Module], dict[str, int]]] = {
    "q, k and v share an input": (
        shared_input,
        {"Net": 1, "Net.q": 1, "Net.k": 1, "Net.v": 1, "Net.o": 1},
    ),
    "the same, traced": (traced, {"Traced": 1, "Traced.v": 1}),
    "two towers": (
        lambda: Net(
            lambda net, x: net.a(x) + net.b(x),
            a=nn.Sequential(Work(), Work()),
            b=nn.Sequential(Work(2, 9)),
        ),
        {"Net": 1, "Net.a": 1, "Net.b": 1, "Net.b.0": 1},
    ),
    "keywords alone": (
        lambda: Net(lambda net, x: net.b(x=net.a(x=x)), a=Work(2, 4), b=Work(3, 6)),
        {"Net": 1, "Net.a": 1, "Net.b": 1},
    ),
    "a module called twice": (
        lambda: Net(
            lambda net, x: net.again(net.between(net.again(x))),
            again=Work(2, 4),
            between=Work(3, 5),
        ),
        {"Net": 1, "Net.again": 2, "Net.between": 1},
    ),
    "a module in two places": (
        with_shared_part,
        {"Net": 1, "Net.a": 2, "Net.b": 1, "Net.b.1": 1},
    ),
    "in place": (
        lambda: Net(in_place, a=Work(), relu=nn.ReLU(inplace=True), b=Work(2, 8)),
        {"Net": 1, "Net.a": 1, "Net.relu": 1, "Net.b": 1},
    ),
    "modules without work": (
        lambda: nn.Sequential(Work(), nn.Flatten(0), Work(), nn.Identity()),
        {"Sequential": 1, "Sequential.0": 1, "Sequential.2": 1, "Sequential.3": 0},
    ),
    "a gradient in forward": (
        lambda: Net(differentiating, inner=Work(2, 4), outer=Work(3, 5)),
        {"Net.outer": 1},
    ),
    "a module made in forward": (
        lambda: Net(growing),
        {"Net": 1, "Net.late": 1, "Net.<ReLU>": 1},
    ),
    "scripted parts": (
        scripted,
        {"Sequential": 1, "Sequential.0": 1, "Sequential.1": 1, "Sequential.2": 1},
    ),
}


@pytest.mark.parametrize("input_grad", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, input_grad: bool) -> None:
    make, expected = MODELS[name]
    model = make()
    found = calls(checked(train(model, input_grad), model))
    assert {name: found[name] for name in expected} == expected


def test_shared_module_has_one_row_under_its_first_path() -> None:
    model = with_shared_part()
    rows = {row.name: row for row in checked(train(model), model).rows()}
    assert rows["Net.a"].aliases == ("Net.b.0",)
    assert rows["Net.a"].calls == 2
    assert "Net.b.0" not in rows


PACKED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tensor": (lambda y: y, lambda out: out),
    "tuple": (lambda y: (None, y), lambda out: out[1]),
    "list": (lambda y: [y, X], lambda out: out[0]),
    "last of many": (lambda y: [X] * 100 + [y], lambda out: out[-1]),
    "tuple of tuples": (lambda y: ((y,),), lambda out: out[0][0]),
    "dict": (lambda y: {"y": y}, lambda out: out["y"]),
    "nested": (lambda y: {"a": [(y, None)]}, lambda out: out["a"][0][0]),
    "any object": (lambda y: SimpleNamespace(y=y), lambda out: out.y),
}


@pytest.mark.parametrize("kind", PACKED)
def test_graphs_keep_their_owners_however_outputs_are_packed(kind: str) -> None:
    pack, unpack = PACKED[kind]
    parts = {"inner": Work(2, 4), "outer": Work(3, 6)}
    model = Net(lambda net, x: pack(net.outer(net.inner(x))), **parts)
    other = Work(0, 0)

    def step() -> None:
        outputs = model(x=X)
        for _ in range(65):  # whose graphs are gone
            other(X)
        unpack(outputs).sum().backward()

    found = calls(checked(step, model))
    assert found == {"Net": 1, "Net.inner": 1, "Net.outer": 1, "Work": 0}


@pytest.mark.parametrize("uses_output", [True, False])
def test_loss_that_a_module_leaves_behind(uses_output: bool) -> None:
    losses = []

    def route(net: Any, x: torch.Tensor) -> Any:
        routed = net.router(x)
        losses.append(routed.square().mean())
        return net.expert(routed.detach())

    model = Net(route, router=Work(2, 7), expert=Work(3, 4))

    def step() -> None:
        output = model(X).sum()
        (output + losses.pop() if uses_output else losses.pop()).backward()

    found = calls(checked(step, model))
    assert found == {"Net": 1, "Net.router": 1, "Net.expert": int(uses_output)}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_a_phase_of_its_own(reentrant: bool, nested: bool) -> None:
    def inner(net: Any, x: torch.Tensor) -> Any:
        x = net.block[0](x)
        if nested:
            return checkpoint(net.block[1], x, use_reentrant=reentrant)
        return net.block[1](x)

    def outer(net: Any, x: torch.Tensor) -> Any:
        x = net.before(x)
        return net.after(
            checkpoint(lambda x: inner(net, x), x, use_reentrant=reentrant)
        )

    block = nn.Sequential(Work(12, 20), nn.Sequential(Work(10, 24)))
    model = Net(outer, before=Work(2, 3), block=block, after=Work(2, 4))
    profile = checked(train(model), model)
    again = calls(profile, "recompute")
    assert (again["Net.before"], again["Net.block.0"], again["Net.after"]) == (0, 1, 0)
    assert again["Net.block.1.0"] >= 1
    assert calls(profile)["Net.block.1.0"] == 1


def without_gradients(mode: Callable[[], Any]) -> Callable[[Any, Any], None]:
    def step(first: Any, second: Any) -> None:
        with mode():
            second(first(X))

    return step


def pair_of_adversaries(generator: Any, critic: Any) -> None:
    fake = generator(X)
    critic(fake.detach()).sum().backward()
    critic(fake).sum().backward()


def retained(first: Any, second: Any) -> None:
    loss = second(first(X)).sum()
    for retain in (True, True, False):
        loss.backward(retain_graph=retain)


def of_a_part(first: Any, second: Any) -> None:
    hidden = first(X)
    torch.autograd.grad(second(hidden).sum(), hidden)


def many_calls(first: Any, second: Any) -> None:
    x = X
    for _ in range(74):
        x = first(x)
    second(x).sum().backward()


def twice_differentiated(first: Any, second: Any) -> None:
    x = torch.ones(3, requires_grad=True)
    loss = second(first(x)).square().sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    gradient.square().sum().backward()


#: Steps of two outermost modules, how often these have a backward, and passes.
STEPS: dict[str, tuple[Callable[[Any, Any], object], tuple[int, int, int]]] = {
    "no_grad": (without_gradients(torch.no_grad), (0, 0, 0)),
    "inference_mode": (without_gradients(torch.inference_mode), (0, 0, 0)),
    "the first is frozen": (
        lambda a, b: b(a.requires_grad_(False)(X)).sum().backward(),
        (0, 1, 1),
    ),
    "several forwards before one backward": (
        lambda a, b: b(a(X) * a(2 * X)).sum().backward(),
        (2, 1, 1),
    ),
    "a pair of adversaries": (pair_of_adversaries, (1, 2, 2)),
    "a retained graph": (retained, (3, 3, 3)),
    "the gradient of a part": (of_a_part, (0, 1, 1)),
    "many calls": (many_calls, (74, 1, 1)),
    "double backward": (twice_differentiated, (3, 3, 2)),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps(name: str) -> None:
    step, expected = STEPS[name]
    first, second = First(2, 5), Second(3, 4)
    profile = checked(lambda: step(first, second), first, second)
    passes = {r.name: r for r in profile.rows()}.get("(backward outside modules)")
    assert passes is None or not passes.self_ns
    of_passes = passes.phases["backward"].calls if passes else 0
    found = calls(profile)
    assert (found["First"], found["Second"], of_passes) == expected


def test_double_backward_through_one_outermost_call() -> None:
    model = nn.Sequential(Work(2, 3), Work(2, 5))
    checked(lambda: twice_differentiated(model, lambda y: y), model)


def test_models_made_anew_for_every_step_share_a_row() -> None:
    def step() -> None:
        for _ in range(20):
            nn.MSELoss()(torch.ones(2, requires_grad=True), torch.ones(2)).backward()

    profile = checked(step)
    assert calls(profile, "forward") == calls(profile) == {"MSELoss": 20}


def test_replicas_are_booked_on_their_original() -> None:
    model = nn.Sequential(Work(2, 4))
    replicas = [model._replicate_for_data_parallel() for _ in range(2)]
    for replica in replicas:
        replica._modules["0"] = shallow = model[0]._replicate_for_data_parallel()
        shallow.scale = model[0].scale

    def step() -> None:
        torch.cat([replica(X) for replica in replicas]).sum().backward()

    assert calls(checked(step, model)) == {"Sequential": 2, "Sequential.0": 2}


class Direct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = Work()
        self.inner = nn.Sequential(Work())

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner.forward(self.up(x))


def test_a_model_whose_forward_is_called_directly_gives_its_modules_their_names() -> (
    None
):
    """It shows no call of the model itself. Those of a model that is called, and of a
    module that another model's forward gets, are named as always."""
    model, other = Direct(), Work()

    class Holds:
        def forward(self, x: torch.Tensor) -> Any:
            return other(model.forward(x))

    with profile() as prof:
        for _ in range(3):
            Holds().forward(torch.ones(2, 8)).sum().backward()
        Direct()(torch.ones(2, 8))
    calls = {row.name: row.calls for row in prof.profile.rows() if row.kind == "module"}
    assert calls == {
        "Direct.up": 3,
        "Direct.inner.0": 3,
        "Work": 3,
        "Direct#2": 1,
        "Direct#2.up": 1,
        "Direct#2.inner.0": 1,
    }


def test_what_is_called_by_itself_is_in_no_call_of_its_model() -> None:
    """A model without its loss, an encoder alone, what DDP wraps."""
    loss = nn.Sequential(model := nn.Sequential(layer := Work(4, 6)))
    with profile() as prof:
        for module in (loss, loss, model, layer):
            module(torch.ones(2, 8)).sum().backward()
    names = ("Sequential", "Sequential.0", "Sequential.0.0")
    rows = {row.name: row for row in prof.profile.rows()}
    assert [rows[name].calls for name in names] == [2, 3, 4]
    times = [rows[name].cumulative_ns for name in names]
    assert times == [2 * 10 * MS, 3 * 10 * MS, 4 * 10 * MS]
    assert all(prof.profile.modules[name].place for name in names)
    assert prof.report().startswith("torchprof_hooks: Sequential, 40.00ms")


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_is_recomputed_is_where_its_forward_is(use_reentrant: bool) -> None:
    """Blocks that the program checkpoints itself, after an evaluation of the model."""
    model = nn.Sequential(Work(4, 6))
    x = torch.ones(2, 8, requires_grad=True)
    with profile() as prof:
        with torch.no_grad():
            model(x)
        for _ in range(2):
            checkpoint(model[0], x, use_reentrant=use_reentrant).sum().backward()
    row = {row.name: row for row in prof.profile.rows()}["Sequential"]
    assert row.cumulative_ns == 4 * MS  # the evaluation


def test_a_hook_on_one_module_names_it_alike_however_its_model_runs() -> None:
    model = Direct()
    add_hook(model.up, timer := TimerHook())
    model(torch.ones(2, 8))
    assert list(timer.summary()) == ["Work"]


def test_classes_that_torch_derives_have_the_names_of_the_users() -> None:
    """Those of FSDP2 are in tests/ranks, which has the processes."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    torch.nn.utils.parametrizations.weight_norm(net[1])
    assert type(net[1]).__name__ == "ParametrizedLinear"
    with profile() as prof:
        net(X)
    classes = {row.name: row.class_name for row in prof.profile.rows()}
    assert classes["Sequential.0"] == classes["Sequential.1"] == "Linear"
    assert classes["Sequential.1.parametrizations.weight"] == "ParametrizationList"
