"""Exceptions go through untouched, and what they leave open is closed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.fake_clock import MS, burn
from tests.planted import Work
from torchprof_hooks import LinkCall, LinkHook, Profile
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.link_hooks import TimerHook

pytestmark = pytest.mark.usefixtures("clock")

ERRORS = [ValueError, KeyboardInterrupt, GeneratorExit]
every_error = pytest.mark.parametrize("error", ERRORS)


class Failing(nn.Module):
    """Raises in forward or backward when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.work = Work(1, 2)
        self.fail_in = ""
        self.error: type[BaseException] = ValueError

    def forward(self, x: torch.Tensor) -> Any:
        x = _FailingFunction.apply(self.work(x), self)
        if self.fail_in == "forward":
            raise self.error("planted")
        return x


class _FailingFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, module: Failing) -> Any:
        ctx.module = module
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        if ctx.module.fail_in == "backward":
            raise ctx.module.error("planted")
        return grad, None


def model_with(failing: Failing) -> nn.Module:
    return nn.Sequential(Work(1, 2), nn.Sequential(failing, Work(1, 1)))


def profile_of_failing(fail_in: str, error: type[BaseException]) -> Profile:
    """A good step, a failing one, some work outside, and a good one."""
    failing = Failing()
    failing.error = error
    model = model_with(failing)
    with torchprof_hooks.profile() as prof:
        for failing.fail_in in ("", fail_in, ""):
            if failing.fail_in:
                with pytest.raises(error, match="planted"):
                    model(torch.ones(3)).sum().backward()
                burn(20)
            else:
                model(torch.ones(3)).sum().backward()
    return prof.profile


@every_error
def test_exception_in_forward(error: type[BaseException]) -> None:
    profile = profile_of_failing("forward", error)
    rows = {row.name: row for row in profile.rows()}
    assert profile.aborted_calls == 3  # the failing module, and two around it
    assert rows["Sequential"].calls == 3
    assert rows["Sequential.1.0"].calls == 3
    assert rows["Sequential.1.1"].calls == 2
    assert rows["Sequential"].phases["backward"].calls == 2
    # What came after the exception belongs to no module: the last that ended well was a
    # backward pass.
    assert rows["(outside modules, after backward)"].self_ns == 20 * MS
    assert rows["(outside modules)"].self_ns == 0
    assert rows["Sequential"].self_ns == 0
    assert rows["Sequential.0"].self_ns == (3 * 1 + 2 * 2) * MS
    assert rows["Sequential.1.1"].self_ns == (2 * 1 + 2 * 1) * MS
    assert len(profile.tree().children) <= 5
    assert sum(row.self_ns for row in profile.rows()) == profile.wall_ns


@every_error
def test_exception_in_backward(error: type[BaseException]) -> None:
    profile = profile_of_failing("backward", error)
    rows = {row.name: row for row in profile.rows()}
    assert profile.aborted_calls == 3
    assert rows["Sequential"].phases["backward"].calls == 3
    assert rows["Sequential.0"].phases["backward"].calls == 2
    assert rows["(outside modules)"].self_ns == 20 * MS
    assert rows["Sequential"].self_ns == 0
    assert rows["Sequential.0"].self_ns == (3 * 1 + 2 * 2) * MS
    assert rows["Sequential.1.1"].self_ns == (3 * 1 + 3 * 1) * MS
    assert sum(row.self_ns for row in profile.rows()) == profile.wall_ns


@every_error
@pytest.mark.parametrize("fail_in", ["forward", "backward"])
def test_exception_that_ends_the_measured_block(
    error: type[BaseException], fail_in: str
) -> None:
    failing = Failing()
    failing.error, failing.fail_in = error, fail_in
    model = model_with(failing)
    prof = torchprof_hooks.profile()
    with pytest.raises(error, match="planted"), prof:
        model(torch.ones(3)).sum().backward()
    failing.fail_in = ""
    with prof:
        model(torch.ones(3)).sum().backward()
    rows = {row.name: row for row in prof.profile.rows()}
    assert rows["Sequential"].calls == 2
    assert prof.profile.aborted_calls == 3


@every_error
def test_exception_in_an_optimizer_step(error: type[BaseException]) -> None:
    class Broken(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            burn(3)
            raise error("planted")

    model = nn.Linear(3, 3)
    optimizer = Broken(model.parameters(), lr=0.1)
    with torchprof_hooks.profile() as prof:
        for _ in range(2):
            model(torch.ones(3)).sum().backward()
            with pytest.raises(error, match="planted"):
                optimizer.step()
            burn(5)
    rows = {row.name: row for row in prof.profile.rows()}
    assert prof.profile.steps == 2  # those of passes: no optimizer has stepped
    assert rows["Linear"].calls == 2
    # torch says nothing of a step that failed: what it took is on nobody's account.
    assert rows["(optimizer) Broken"].self_ns == 0
    outside = "(outside modules)", "(outside modules, after backward)"
    assert [rows[name].self_ns for name in outside] == [(3 + 5) * MS] * 2
    assert prof.profile.tree().children[0].name != "(optimizer) Broken"


@every_error
def test_timer_after_an_exception(error: type[BaseException]) -> None:
    failing = Failing()
    failing.error, failing.fail_in = error, "forward"
    model = model_with(failing)
    with TimerHook() as timer:
        with pytest.raises(error, match="planted"):
            model(torch.ones(3))
        failing.fail_in = ""
        model(torch.ones(3))
    assert timer.summary()["Sequential"]["occurrence"] == 4
    total_s = timer.total_time()
    assert 2e-3 < total_s < timer.summary()["Sequential"]["elapsed_time"]


def test_error_of_the_engine_reaches_the_user() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torchprof_hooks.profile() as prof:
        loss = model(torch.ones(3)).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        with pytest.raises(RuntimeError, match="does not require grad"):
            torch.ones(1).backward()
    assert prof.profile.steps == 0  # the optimizer would have ended one
    del optimizer


def test_exception_in_recomputation() -> None:
    attempts: list[int] = []

    class Flaky(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            attempts.append(1)
            if len(attempts) == 2:
                raise ValueError("planted")
            return x.exp()

    model = Flaky()
    with torchprof_hooks.profile() as prof:
        for _ in range(2):
            x = torch.ones(3, requires_grad=True)
            y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
            try:
                y.sum().backward()
            except ValueError:
                continue
    (row,) = [row for row in prof.profile.rows() if row.kind == "module"]
    assert (row.calls, row.phases["recompute"].calls) == (2, 2)
    assert prof.profile.aborted_calls >= 1


# While the program handles another exception


class Nothing(nn.Module):
    """Returns None, or raises."""

    def forward(self, fails: bool) -> None:
        if fails:
            raise LookupError("planted")


def by_module(fails: bool) -> None:
    nn.Sequential(Nothing())(fails)


def by_region(fails: bool) -> None:
    with torchprof_hooks.region("Nothing"), torchprof_hooks.region("inner"):
        Nothing().forward(fails)


class Posts(LinkHook):
    """Counts the ends of calls."""

    def __init__(self) -> None:
        self.posts = 0

    def forward_postprocess(self, args: LinkCall) -> None:
        self.posts += 1


@pytest.mark.parametrize("call", [by_module, by_region])
def test_calls_while_an_exception_is_handled(call: Callable[[bool], None]) -> None:
    with torchprof_hooks.profile() as prof, Posts() as hook:
        try:
            raise ValueError("planted")
        except ValueError:
            call(False)
            assert (hook.posts, prof.profile.aborted_calls) == (2, 0)
            with pytest.raises(LookupError, match="planted"):
                call(True)
            call(False)
    assert (hook.posts, prof.profile.aborted_calls) == (4, 2)


def test_a_pass_that_fails_while_an_exception_is_handled() -> None:
    failing = Failing()
    model = model_with(failing)
    with torchprof_hooks.profile() as prof:
        try:
            raise ValueError("other")
        except ValueError:
            for failing.fail_in in ("", "backward", ""):
                raises = pytest.raises(ValueError, match="planted")
                with raises if failing.fail_in else nullcontext():
                    model(torch.ones(3)).sum().backward()
    assert (prof.profile.steps, prof.profile.aborted_calls) == (2, 3)


def test_pass_that_an_interrupt_kept_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Sequential(Work(1, 1))
    end_pass = Tracker.end_pass
    with torchprof_hooks.profile() as prof:
        with monkeypatch.context() as patch:

            def interrupted(*_: Any) -> None:
                raise KeyboardInterrupt

            patch.setattr(Tracker, "end_pass", interrupted)
            with pytest.raises(KeyboardInterrupt):
                model(torch.ones(3)).sum().backward()
        assert Tracker.end_pass is end_pass
        for _ in range(3):
            model(torch.ones(3)).sum().backward()
    rows = {row.name: row for row in prof.profile.rows()}
    phases = rows["Sequential"].phases
    assert (phases["forward"].calls, phases["recompute"].calls) == (4, 0)
    assert phases["backward"].calls == 4
    assert sum(row.self_ns for row in prof.profile.rows()) == prof.profile.wall_ns
