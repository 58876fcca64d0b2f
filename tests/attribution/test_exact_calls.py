"""All numbers of calls of every kind, whatever else is measured: how many, own time,
sum, least, most and squares, to the nanosecond.

Only what anybody can ask of `profile()` is looked at: this holds however it measures.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.cores import NATIVE_CORE
from tests.doing import X
from tests.exact import Found, calls, each_option, found, no_calls, outside, passes
from tests.fake_clock import MS, burn
from tests.functions import Runs
from tests.planted import Work
from torchprof_hooks import profile

pytestmark = pytest.mark.usefixtures("clock")


class Outer(nn.Module):
    """Works before, between and after two others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Work(), Work()
        self.between = [Work()]  # called past its hooks: a part of this one
        self.before = self.after = 0

    def set(self, step: int) -> None:
        """All durations differ, and so do those of the steps."""
        self.before, self.after = step, 2 * step
        for factor, work in ((4, self.first), (8, self.between[0]), (16, self.second)):
            work.forward_ms, work.backward_ms = factor * step, 3 * factor * step

    def forward(self, x: torch.Tensor) -> Any:
        burn(self.before)
        x = self.second(self.between[0].forward(self.first(x)))
        burn(self.after)
        return x


def of_outer(phase: str, whole: int, own: int, first: int, second: int) -> Found:
    """Rows of `Outer` and its children: durations in step 1."""
    return {
        ("Outer", phase): calls(*(whole * s for s in STEPS), own=own * sum(STEPS)),
        ("Outer.first", phase): calls(*(first * s for s in STEPS)),
        ("Outer.second", phase): calls(*(second * s for s in STEPS)),
    }


FORWARD = {"whole": 31, "own": 11, "first": 4, "second": 16}
BACKWARD = {"whole": 84, "own": 24, "first": 12, "second": 48}
STEPS = (2, 5, 1)


@each_option
def test_forward_and_backward(options: Any) -> None:
    model = Outer()
    with profile(**options) as prof:
        for step in STEPS:
            model.set(step)
            burn(7)
            model(X).sum().backward()
    measured = prof.profile
    assert found(measured) == {
        **of_outer("forward", **FORWARD),
        **of_outer("backward", **BACKWARD),
        **passes(*(84 * s for s in STEPS)),
        **outside(7),
        ("(outside modules, after backward)", "outside"): no_calls(7 * 2),
    }
    [node] = [node for _, node in measured.tree().walk() if node.name == "Outer"]
    for phase, whole in (("forward", 31), ("backward", 84)):
        of_phase = dict[Any, Any](node.phases)[phase]
        assert of_phase.cumulative_ns == whole * sum(STEPS) * MS


@pytest.mark.parametrize("reentrant", [True, False])
@each_option
def test_recomputation(options: Any, reentrant: bool) -> None:
    model, head = Outer(), Work(0, 64)
    with profile(**options) as prof:
        for step in STEPS:
            model.set(step)
            model.after = 0  # what comes after the last saved tensor may be left out
            x = X.clone().requires_grad_()
            head(checkpoint(model, x, use_reentrant=reentrant)).sum().backward()
    rows = found(prof.profile)
    inside = {path[-2:] for path, phase in prof.profile.cells if phase == "recompute"}
    assert {("Outer", "Outer.first"), ("Outer", "Outer.second")} <= inside
    expected = of_outer("backward", **BACKWARD)
    for phase in ("forward", "recompute"):
        expected |= of_outer(phase, **{**FORWARD, "whole": 29, "own": 9})
    assert {key: rows.pop(key) for key in expected} == expected
    assert rows == {
        ("Work", "forward"): calls(0, 0, 0),
        ("Work", "backward"): calls(64, 64, 64),
        **passes(*(84 * s + 64 for s in STEPS)),
    }


class SlowSGD(torch.optim.SGD):
    takes = 0.0

    def step(self, closure: Any = None) -> Any:
        burn(self.takes)
        with torch.enable_grad():
            closure()
            loss = closure()
        burn(self.takes)
        return loss


@each_option
def test_what_an_optimizer_asks_the_program_for_is_not_its_time(options: Any) -> None:
    work = Work(1, 2)
    optimizer: Any = SlowSGD(work.parameters(), 0.0)

    def closure() -> Any:
        burn(100)
        loss = work(X).sum()
        burn(50)
        loss.backward()
        return loss

    with profile(**options) as prof:
        for optimizer.takes, by_name in ((2, False), (7, True), (1, False)):
            given = {"closure": closure} if by_name else {}
            loss = optimizer.step(*[closure] * (not by_name), **given)
            assert isinstance(loss, torch.Tensor)
    assert prof.profile.steps == 3
    assert found(prof.profile) == {
        ("(optimizer) SlowSGD", "optimizer"): calls(4, 14, 2),
        ("Work", "forward"): calls(*[1] * 6),
        ("Work", "backward"): calls(*[2] * 6),
        **passes(*[2] * 6),
        **outside(6 * 150),
    }


@each_option
def test_calls_that_take_no_time_and_calls_that_take_days(options: Any) -> None:
    day = 24 * 3600 * 1000
    work = Work()
    with profile(**options) as prof:
        for days in (0, 3, 0, 2):
            work.forward_ms = work.backward_ms = days * day
            work(X).sum().backward()
    rows = found(prof.profile)
    expected = calls(0, 3 * day, 0, 2 * day)
    for phase in ("forward", "backward"):
        row = rows["Work", phase]
        assert row[:5] == expected[:5]
        assert row.squares == pytest.approx(expected.squares, rel=1e-12)


@NATIVE_CORE
@each_option
def test_functions(options: Any) -> None:
    work = Work()
    with profile(**{**options, "functions": True}) as prof:
        for step in (3, 1, 4):
            work.forward_ms, work.backward_ms = step, 2 * step
            work(X).sum().backward()
            Runs.apply(X, lambda takes=10 * step: burn(takes))
    rows = {key: row for key, row in found(prof.profile, "function").items() if row.own}
    assert rows == {
        ("_Burning", "forward"): calls(3, 1, 4),
        ("_Burning", "backward"): calls(6, 2, 8),
        ("Runs", "forward"): calls(30, 10, 40),
    }


class CallsItself(nn.Module):
    """Is compiled in place, and calls itself where the compiler does not look."""

    def forward(self, x: torch.Tensor, depth: int = 2) -> Any:
        return self.go_on(x * 2, depth)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def go_on(self, x: torch.Tensor, depth: int) -> Any:
        burn(2)
        if depth:
            x = self(x, depth - 1)
        burn(3)
        return x


@NATIVE_CORE  # the other does not see what is compiled in place
def test_a_compiled_module_that_calls_itself_is_called_as_often_as_written() -> None:
    profiles = []
    for compiles in (False, True):
        model = CallsItself()
        if compiles:
            model.compile(backend="eager")
        model(X)
        with profile() as prof:
            model(X)
            burn(7)
            model(X)
        profiles.append(found(prof.profile))
    as_written, compiled = profiles
    assert compiled == as_written
    assert compiled["CallsItself", "forward"].calls == 2 * 3
