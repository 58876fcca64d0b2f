"""What the autograd engine does before it runs the first node, and what it is asked to
do after the last one, is nobody's backward: it is a row of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profiler

from tests.doing import Net, X, at_the_end
from tests.exact import (
    NET_FORWARD,
    calls,
    each_option,
    found,
    net_backward,
    no_calls,
    outside,
    own_ms,
    passes,
)
from tests.fake_clock import burn
from tests.helpers import in_thread
from tests.planted import Work
from torchprof_hooks import Profile, profile

ENGINE = ("(autograd engine)", "backward")
PASSES = ("(backward outside modules)", "backward")
LEAF = torch.ones(3, requires_grad=True)


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
def test_it_is_nobodys_backward(options: Any, tmp_path: Path) -> None:
    net = Net(nothing)
    with profile(**options) as prof:
        for _ in range(2):
            net(X).sum().backward()
    rows = found(prof.profile)
    assert rows[ENGINE] == no_calls(10)
    assert rows[PASSES] == calls(17, 17, own=0)
    for key, of_one in net_backward().items():
        assert rows[key].own == 2 * of_one.own
    assert prof.profile.aborted_calls == 0
    prof.profile.save(tmp_path / "saved.json")
    loaded = Profile.load(tmp_path / "saved.json")
    assert found(loaded) == rows
    places = {node.name: node for _, node in loaded.tree().walk()}
    assert places[ENGINE[0]].phases["backward"].self_ns == 10_000_000
    assert ENGINE[0] in loaded.report(full=True)


def over_a_graph_that_is_gone(loss: torch.Tensor) -> None:
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


#: Ways to run the engine, and how often each does.
WAYS: dict[str, tuple[int, Callable[[torch.Tensor], object]]] = {
    "backward": (1, lambda loss: loss.backward()),
    "grad": (1, lambda loss: torch.autograd.grad(loss, LEAF)),
    "with a graph": (
        1,
        lambda loss: torch.autograd.grad(loss, LEAF, create_graph=True),
    ),
    "several roots": (1, lambda loss: torch.autograd.backward([loss * 1, loss * 2])),
    "retained": (1, lambda loss: loss.backward(retain_graph=True)),
    "twice": (2, lambda loss: (loss.backward(retain_graph=True), loss.backward())),
    "a graph that is gone": (2, over_a_graph_that_is_gone),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("slow_engine")
def test_each_kind_of_pass_has_it(way: str) -> None:
    net, (times, run) = Net(nothing), WAYS[way]
    with profile() as prof:
        for _ in range(3):  # the first pass shows how others are followed
            run(net(LEAF).sum())
    rows = found(prof.profile)
    assert rows[ENGINE] == no_calls(3 * times * 5)
    assert rows[PASSES].own == 0


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
    expected = {**NET_FORWARD, **net_backward(), **passes(12), **outside(3)}
    assert found(prof.profile) == expected


@pytest.mark.usefixtures("slow_engine")
def test_a_leaf_has_nothing_to_run() -> None:
    leaf = torch.ones((), requires_grad=True)
    with profile() as prof:
        leaf.backward()
    rows = found(prof.profile)
    assert sum(row.own for row in rows.values()) == 5
    assert rows[PASSES].calls == 1


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
    expected = {**NET_FORWARD, **passes(5), ENGINE: no_calls(5), **outside(1)}
    assert found(prof.profile) == expected
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


def test_where_a_pass_with_several_roots_begins_is_no_function() -> None:
    net = nn.Linear(3, 3)
    with profile(functions=True) as prof:
        for _ in range(2):
            y = net(X)
            torch.autograd.backward([y.sum(), (y * 2).sum()])
    assert not [path for path, _ in prof.profile.cells if "GraphRoot" in path[-1]]


@each_option
@pytest.mark.usefixtures("clock")
def test_what_it_is_asked_to_do_at_the_end(options: Any) -> None:
    """Also a pass, which is booked once."""
    net, other = Net(nothing), Work(1, 20)

    def late_pass() -> None:
        burn(10)
        with torch.enable_grad():
            other(X.clone().requires_grad_()).sum().backward()
        burn(10)

    with profile(**options) as prof:
        for late in (late_pass, lambda: burn(50), late_pass):
            x = X.clone().requires_grad_()
            at_the_end(x, late)
            net(x).sum().backward()
    assert own_ms(prof.profile) == {
        ("Net.first", "forward"): 3 * 1,
        ("Net.first", "backward"): 3 * 4,
        ("Net.last", "forward"): 3 * 2,
        ("Net.last", "backward"): 3 * 8,
        ("Work", "recompute"): 2 * 1,
        ("Work", "backward"): 2 * 20,
        ENGINE: 2 * 20 + 50,
    }
    assert prof.profile.aborted_calls == 0


@pytest.mark.usefixtures("clock")
def test_passes_that_python_does_not_start_are_outside_modules() -> None:
    """As by TorchScript. Others are divided as ever."""

    def backward(loss: torch.Tensor) -> None:
        loss.backward()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TorchScript is to be replaced
        run_backward = torch.jit.script(backward)
    net = Net(nothing)
    with profile() as prof:
        for start in (run_backward, torch.Tensor.backward, run_backward):
            start(net(X.clone().requires_grad_()).sum())
    assert found(prof.profile) == {
        **{
            key: calls(*[row.total] * 3, own=3 * row.own)
            for key, row in NET_FORWARD.items()
        },
        **net_backward(),
        **passes(12),
        **outside(2 * 12),
    }


def test_torchs_profiler_may_be_stopped_in_a_pass() -> None:
    """As without us: it finds its state on top. In a thread of its own, as torch does
    not get over it."""
    seen: list[int] = []

    def work() -> None:
        other = torch_profiler(activities=[ProfilerActivity.CPU])
        y = torch.ones(3, requires_grad=True) * 2
        y.register_hook(lambda _: other.stop())
        with profile() as prof:
            other.start()
            y.sum().backward()
            nn.Linear(3, 3)(torch.ones(3)).sum().backward()
        seen.append(len(other.events() or ()))
        seen.append(prof.profile.cells[("Linear",), "backward"].calls)

    in_thread(work)
    assert seen[0] > 0
    assert seen[1:] == [1]
