"""Exceptions go through untouched, and what they leave open is closed."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.doing import Does, DoesInBackward, SGDThat
from tests.fake_clock import MS, burn
from tests.functions import raises
from tests.planted import Work
from torchprof_hooks import LinkCall, LinkHook, Profile

pytestmark = pytest.mark.usefixtures("clock")

X = torch.ones(3)

ERRORS = [ValueError, KeyboardInterrupt, GeneratorExit]
every_error = pytest.mark.parametrize("error", ERRORS)


class Failing(nn.Module):
    """Raises in forward or backward when told to."""

    def __init__(self, error: type[BaseException] = ValueError) -> None:
        super().__init__()
        self.work = Work(1, 2)
        self.error = error
        self.fail_in = ""

    def fail(self, where: str) -> None:
        if self.fail_in == where:
            raise self.error("planted")

    def forward(self, x: torch.Tensor) -> Any:
        x = DoesInBackward.apply(self.work(x), lambda: self.fail("backward"))
        self.fail("forward")
        return x


def model_with(failing: Failing) -> nn.Module:
    return nn.Sequential(Work(1, 2), nn.Sequential(failing, Work(1, 1)))


def run(failing: Failing, model: nn.Module, *fail_in: str) -> None:
    """Steps, which fail there, or are good. After a failure there is work outside."""
    for failing.fail_in in fail_in:
        fails = pytest.raises(failing.error, match="planted")
        with fails if failing.fail_in else nullcontext():
            model(X).sum().backward()
        burn(20 if failing.fail_in else 0)


#: Of a good, a failing and another good step: calls of all, of the failing one, and of
#: what comes after it, and backwards of all and of the first.
CALLS = {"forward": ((3, 3, 2), (2, 2)), "backward": ((3, 3, 3), (3, 2))}


def check_sums(profile: Profile) -> None:
    assert sum(row.self_ns for row in profile.rows()) == profile.wall_ns


@every_error
@pytest.mark.parametrize("fail_in", CALLS)
def test_in_a_step(fail_in: str, error: type[BaseException]) -> None:
    failing = Failing(error)
    model = model_with(failing)
    with torchprof_hooks.profile() as prof:
        run(failing, model, "", fail_in, "")
    rows = {row.name: row for row in prof.profile.rows()}
    assert prof.profile.aborted_calls == 3  # the failing one, and two around it
    called, backwards = CALLS[fail_in]
    names = ("Sequential", "Sequential.1.0", "Sequential.1.1")
    assert tuple(rows[name].calls for name in names) == called
    passed = (rows["Sequential"].phases, rows["Sequential.0"].phases)
    assert tuple(phases["backward"].calls for phases in passed) == backwards
    # What came after the exception belongs to no module: the last that ended well was a
    # backward pass, or a forward.
    outside = ("(outside modules)", "(outside modules, after backward)")
    where = outside[fail_in == "forward"]
    assert {n: rows[n].self_ns for n in outside if n in rows and rows[n].self_ns} == {
        where: 20 * MS
    }
    assert rows["Sequential"].self_ns == 0
    assert rows["Sequential.0"].self_ns == (3 * 1 + 2 * 2) * MS
    assert rows["Sequential.1.1"].self_ns == 2 * called[2] * MS
    assert len(prof.profile.tree().children) <= 5
    check_sums(prof.profile)


@every_error
@pytest.mark.parametrize("fail_in", ["forward", "backward"])
def test_that_ends_the_measured_block(error: type[BaseException], fail_in: str) -> None:
    failing = Failing(error)
    model, failing.fail_in = model_with(failing), fail_in
    prof = torchprof_hooks.profile()
    with pytest.raises(error, match="planted"), prof:
        model(X).sum().backward()
    assert "Sequential" in prof.report()
    with prof:
        run(failing, model, "")
    rows = {row.name: row for row in prof.profile.rows()}
    assert rows["Sequential"].calls == 2
    assert prof.profile.aborted_calls == 3


@every_error
def test_in_an_optimizer_step(error: type[BaseException]) -> None:
    def fail() -> None:
        burn(3)
        raise error("planted")

    model = nn.Linear(3, 3)
    optimizer: Any = SGDThat(model.parameters(), 0.1)
    optimizer.work = fail
    with torchprof_hooks.profile() as prof:
        for _ in range(2):
            model(X).sum().backward()
            with pytest.raises(error, match="planted"):
                optimizer.step()
            burn(5)
    rows = {row.name: row for row in prof.profile.rows()}
    assert prof.profile.steps == 2  # those of passes: no optimizer has stepped
    assert rows["Linear"].calls == 2
    # torch says nothing of a step that failed: what it took is on nobody's account.
    assert rows["(optimizer) SGDThat"].self_ns == 0
    outside = "(outside modules)", "(outside modules, after backward)"
    assert [rows[name].self_ns for name in outside] == [(3 + 5) * MS] * 2
    assert prof.profile.tree().children[0].name != "(optimizer) SGDThat"


def test_in_a_recomputation() -> None:
    attempts = iter([int, raises(ValueError), int, int])

    def attempt() -> None:
        next(attempts)()

    model = nn.Sequential(Does(attempt), nn.Tanh())
    with torchprof_hooks.profile() as prof:
        for fails in (True, False):
            x = torch.ones(3, requires_grad=True)
            y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
            with pytest.raises(ValueError, match="planned") if fails else nullcontext():
                y.sum().backward()
    rows = {row.name: row for row in prof.profile.rows()}
    for name in ("Sequential", "Sequential.0"):
        assert (rows[name].calls, rows[name].phases["recompute"].calls) == (2, 2)
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


def test_the_traceback_of_a_backward_pass_is_as_without_us() -> None:
    def frames() -> list[str]:
        failing = Failing()
        failing.fail_in = "backward"
        with pytest.raises(ValueError, match="planted") as caught:
            failing(X.clone().requires_grad_()).sum().backward()
        return [each.name for each in traceback.extract_tb(caught.value.__traceback__)]

    alone = frames()
    with torchprof_hooks.profile():
        measured = frames()
    if sys.version_info < (3, 11):  # see `leave_out_our_frame`
        measured.remove("run_measured_backward")
    assert measured == alone
