"""What the autograd engine does before it runs the first node is a row of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.doing import DoesInBackward, Net, X
from tests.exact import (
    NET_FORWARD,
    Found,
    calls,
    each_option,
    found,
    no_calls,
    outside,
    passes,
)
from tests.fake_clock import burn
from torchprof_hooks import FunctionHook, LinkHook, Profile, add_hook, profile
from torchprof_hooks.link_hooks import TimerHook

Backward = Callable[[torch.Tensor], object]

ENGINE = ("(autograd engine)", "backward")
NET_BACKWARD: Found = {
    ("Net", "backward"): calls(12, own=0),
    ("Net.first", "backward"): calls(4),
    ("Net.last", "backward"): calls(8),
}


@pytest.fixture
def slow_engine(clock: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine takes 5 ms to begin."""
    run: Any = vars(torch.autograd)["_engine_run_backward"]

    def run_slowly(*args: Any, **kwargs: Any) -> Any:
        burn(5)
        return run(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "_engine_run_backward", run_slowly)


def nothing() -> None: ...


@each_option
@pytest.mark.usefixtures("slow_engine")
def test_it_is_nobodys_backward(options: Any) -> None:
    net = Net(nothing)
    with profile(**options) as prof:
        for _ in range(2):
            net(X).sum().backward()
    rows = found(prof.profile)
    assert rows[ENGINE] == no_calls(10)
    assert rows["(backward outside modules)", "backward"] == calls(17, 17, own=0)
    for name, kind in NET_BACKWARD:
        (of_one,) = (row for key, row in NET_BACKWARD.items() if key == (name, kind))
        assert rows[name, kind].own == 2 * of_one.own
    assert prof.profile.aborted_calls == 0


@pytest.mark.usefixtures("slow_engine")
def test_what_runs_first_may_belong_to_nobody() -> None:
    net = Net(nothing)
    with profile() as prof:
        loss: Any = DoesInBackward.apply(net(X), lambda: burn(3))
        loss.sum().backward()
    assert found(prof.profile) == {
        **NET_FORWARD,
        **NET_BACKWARD,
        **passes(20, own=3),
        ENGINE: no_calls(5),
    }


LEAF = torch.ones(3, requires_grad=True)

WAYS: dict[str, Backward] = {
    "backward": lambda loss: loss.backward(),
    "grad": lambda loss: torch.autograd.grad(loss, LEAF),
    "a graph of its own": lambda loss: torch.autograd.grad(
        loss, LEAF, create_graph=True
    ),
    "several roots": lambda loss: torch.autograd.backward([loss * 1, loss * 2]),
    "retained": lambda loss: loss.backward(retain_graph=True),
}


@pytest.mark.parametrize("run", WAYS.values(), ids=WAYS)
@pytest.mark.usefixtures("slow_engine")
def test_each_kind_of_pass_has_it(run: Backward) -> None:
    net = Net(nothing)
    with profile() as prof:
        for _ in range(3):  # the first pass shows how others are followed
            run(net(LEAF).sum())
    rows = found(prof.profile)
    assert rows[ENGINE] == no_calls(15)
    assert rows["(backward outside modules)", "backward"].own == 0


@pytest.mark.usefixtures("clock")
def test_gradients_that_cannot_be_made_begin_no_pass() -> None:
    net = Net(nothing)
    with profile() as prof:
        output = net(X)
        with pytest.raises(RuntimeError, match="scalar outputs"):
            output.backward()
        burn(3)
        enter: Any = vars(torch.autograd)["_engine_run_backward"]
        gradients = (torch.ones_like(output),)
        enter((output,), gradients, False, False, (), True, accumulate_grad=True)
    assert found(prof.profile) == {
        **NET_FORWARD,
        **NET_BACKWARD,
        **passes(12),
        **outside(3),
    }


@pytest.mark.usefixtures("slow_engine")
def test_a_second_pass_over_a_graph_has_its_own() -> None:
    net = Net(nothing)
    with profile() as prof:
        loss = net(X).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    assert found(prof.profile)[ENGINE] == no_calls(15)


@pytest.mark.usefixtures("slow_engine")
def test_a_leaf_has_nothing_to_run() -> None:
    leaf = torch.ones((), requires_grad=True)
    with profile() as prof:
        leaf.backward()
    rows = found(prof.profile)
    assert sum(row.own for row in rows.values()) == 5
    assert rows["(backward outside modules)", "backward"].calls == 1


@pytest.mark.usefixtures("clock")
def test_an_engine_that_never_runs_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        burn(5)
        raise RuntimeError("no")

    monkeypatch.setattr(torch.autograd, "_engine_run_backward", fail)
    net = Net(nothing)
    with profile() as prof:
        loss = net(X).sum()
        with pytest.raises(RuntimeError, match="no"):
            loss.backward()
        burn(1)
    assert found(prof.profile) == {
        **NET_FORWARD,
        **passes(5),
        ENGINE: no_calls(5),
        **outside(1),
    }
    assert prof.profile.aborted_calls == 0


@pytest.mark.usefixtures("slow_engine")
def test_a_pass_inside_of_another_is_a_part_of_what_started_it() -> None:
    def inner() -> None:
        with torch.enable_grad():
            (LEAF * 2).sum().backward()

    net = Net(inner)
    with profile() as prof:
        net(X).sum().backward()
    rows = found(prof.profile)
    assert rows[ENGINE] == no_calls(5)
    assert rows["Net", "backward"].own == 5


@pytest.mark.usefixtures("slow_engine")
def test_it_is_kept_in_files_and_trees(tmp_path: Path) -> None:
    net = Net(nothing)
    with profile() as prof:
        net(X).sum().backward()
    prof.profile.save(tmp_path / "saved.json")
    loaded = Profile.load(tmp_path / "saved.json")
    assert found(loaded) == found(prof.profile)
    places = {node.name: node for _, node in loaded.tree().walk()}
    assert places[ENGINE[0]].phases["backward"].self_ns == 5_000_000
    assert ENGINE[0] in loaded.report(full=True)


class Calls(LinkHook):
    name = "calls"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def backward_preprocess(self, args: Any) -> None:
        self.seen.append(args.path)

    def backward_postprocess(self, args: Any) -> None:
        self.seen.append("end of " + args.path)


@pytest.mark.usefixtures("slow_engine")
def test_hooks_are_told_of_modules_alone() -> None:
    model = nn.Sequential(Net(nothing))
    hook, timer = Calls(), TimerHook(backward=True, by="module")
    with hook, timer:
        model(X).sum().backward()
    assert hook.seen[0] == "Sequential"
    assert all("Sequential" in name for name in hook.seen)
    assert set(timer.summary()) == {name for name in hook.seen if "end" not in name}


class Nodes(FunctionHook):
    name = "nodes"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def backward_preprocess(self, function: Any, *_: Any) -> None:
        self.seen.append(function.name)

    def backward_postprocess(self, function: Any, *_: Any) -> None:
        self.seen.append("end of " + function.name)


@pytest.mark.usefixtures("slow_engine")
def test_a_hook_on_the_node_that_runs_first_begins_after_it() -> None:
    hook = Nodes()
    loss = (LEAF * 2).sum()
    add_hook(loss.grad_fn, hook)
    with profile() as prof:
        loss.backward()
    assert hook.seen == ["SumBackward0", "end of SumBackward0"]
    assert found(prof.profile)[ENGINE] == no_calls(5)


def test_where_a_pass_with_several_roots_begins_is_no_function() -> None:
    net = nn.Linear(3, 3)
    with profile(functions=True) as prof:
        for _ in range(2):
            y = net(torch.ones(3))
            torch.autograd.backward([y.sum(), (y * 2).sum()])
    names = {path[-1] for path, _ in prof.profile.cells}
    assert not {name for name in names if "GraphRoot" in name}
