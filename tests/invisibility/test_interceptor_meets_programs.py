"""What programs do where module calls are seen comes out as it does alone, and all of
their calls are seen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

from tests.cores import NATIVE_CORE
from tests.exact import calls, found, no_calls, outside
from tests.fake_clock import burn
from tests.helpers import in_thread
from torchprof_hooks import LinkHook, profile
from torchprof_hooks.capture.attach.interception import Subscription
from torchprof_hooks.capture.backward import node_hooks
from torchprof_hooks.capture.backward.backward_pass import BackwardPass
from torchprof_hooks.capture.backward.node_hooks import HookedPasses
from torchprof_hooks.capture.tracking.subscriptions import hide_modules, show_modules
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.profiles.names import BACKWARD_NAME, ENGINE_NAME

pytestmark = pytest.mark.usefixtures("clock")

X = torch.ones(2)


class Slow(nn.Module):
    """Takes 2 ms, and fails where it is asked to."""

    def forward(self, x: torch.Tensor, fails: bool = False) -> torch.Tensor:
        burn(2)
        if fails:
            raise ValueError("it does")
        return x * 1


def test_a_program_that_asks_whether_modules_are_compiled_is_told_so() -> None:
    model: Any = Slow()
    with profile() as prof:
        assert model._compiled_call_impl is None
        saved, model._compiled_call_impl = model._compiled_call_impl, None
        model(X)
        model._compiled_call_impl = saved
        model(X)
        model._compiled_call_impl = model.forward
        assert model._compiled_call_impl == model.forward
        model._compiled_call_impl = saved
    assert torch.equal(model(X), X)
    assert found(prof.profile) == {("Slow", "forward"): calls(2, 2)}
    with profile():
        vars(model)["_call_impl"] = lambda x: "its own"
        assert model(X) == "its own"


class Tree(nn.Module):
    """Calls itself, so many times, and takes 2 ms around that."""

    def forward(self, x: torch.Tensor, below: int) -> torch.Tensor:
        burn(1)
        y: torch.Tensor = self(x, below - 1) if below else x * 1
        burn(1)
        return y


def test_a_module_that_calls_itself() -> None:
    with profile() as prof:
        Tree()(X, 3)
    assert prof.profile.aborted_calls == 0
    levels = [key[0] for key in prof.profile.cells if key[1] == "forward"]
    assert sorted(map(len, levels)) == [1, 2, 3, 4]
    own = sum(cell.self_ns for cell in prof.profile.cells.values())
    assert own == prof.profile.wall_ns == 8_000_000


class FailsAtTheEnd(LinkHook):
    def forward_postprocess(self, args: Any) -> None:
        raise RuntimeError("a hook does")


def test_what_one_hook_raises_at_the_end_of_a_call_ends_it_for_all() -> None:
    model = Slow()
    with profile() as prof:
        model(X)
        with FailsAtTheEnd(), pytest.raises(RuntimeError, match="a hook does"):
            model(X)
        burn(3)
        model(X)
    assert found(prof.profile) == {("Slow", "forward"): calls(2, 2, 2), **outside(3)}
    assert prof.profile.aborted_calls == 0


def go_on_after_failing(model: Slow) -> None:
    with suppress(ValueError):
        model(X, fails=True)
    for _ in range(1000):  # handlers of signals run between two lines
        burn(1)


def test_an_interrupt_at_the_end_of_a_call_that_failed_comes_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(self: Tracker) -> None:
        raise KeyboardInterrupt

    model = Slow()
    with profile():
        monkeypatch.setattr(Tracker, "count_if_aborted", interrupted)
        with pytest.raises(KeyboardInterrupt):
            go_on_after_failing(model)


def test_what_a_generator_handles_stays_its_own() -> None:
    model = Slow()

    def generate() -> Iterator[BaseException | None]:
        with suppress(ValueError):
            model(X, fails=True)
        yield None
        yield sys.exc_info()[1]

    with profile():
        generated = generate()
        try:
            raise KeyError("around the first")
        except KeyError:
            next(generated)
        assert next(generated) is None


@NATIVE_CORE
def test_what_a_hooked_pass_calls_in_a_thread_of_a_devices() -> None:
    tracker = Tracker(backward=HookedPasses())
    subscription = Subscription()
    subscription.cursors = (tracker,)
    show_modules(subscription)
    base = tracker.tree.entry_site(tracker.site, BACKWARD_NAME, "backward")
    tracker.open_entry(base)
    running = BackwardPass(base, opened_base=True, makes_graph=False)
    running.open = []
    tracker.passes.append(running)

    def call_in_pass(gradient: torch.Tensor) -> None:
        running.task = torch._C._current_graph_task_id()
        Slow()(gradient)

    def run() -> None:
        value = torch.ones(1, requires_grad=True) * 2
        value.register_hook(call_in_pass)
        value.backward()

    in_thread(run)
    tracker.close_entry(base)
    hide_modules(subscription)
    assert "Slow" in {site.path[-1] for site in tracker.sites if site.path}


class Follows(LinkHook):
    def backward_postprocess(self, args: Any) -> None: ...


def test_what_one_profiler_walks_is_not_the_engines_time_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reach: Callable[..., Any] = vars(node_hooks)["reachable_nodes"]

    def reach_slowly(roots: Any) -> Any:
        burn(7)
        return reach(roots)

    monkeypatch.setattr(node_hooks, "reachable_nodes", reach_slowly)
    leaf = torch.ones(2, requires_grad=True)
    with Follows(), profile() as prof:
        Slow()(leaf).sum().backward()
    assert found(prof.profile).get((ENGINE_NAME, "backward"), no_calls(0)).own == 0
