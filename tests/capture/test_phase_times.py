"""Backward passes and optimizers are timed where nothing else is seen of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.budgeted import sampled
from tests.doing import DoesInBackward
from tests.fake_clock import MS, burn
from tests.helpers import in_thread
from tests.planted import Work
from torchprof_hooks.capture.attach.attachments import attachments
from torchprof_hooks.capture.attach.optimizer_steps import optimizer_hooks
from torchprof_hooks.capture.sampling.estimates.strata import Strata
from torchprof_hooks.capture.sampling.levels import Ended, Level, Run
from torchprof_hooks.capture.sampling.machine_costs import CountedCosts
from torchprof_hooks.capture.sampling.phase_times import PhaseTimes
from torchprof_hooks.capture.sampling.prices import Prices
from torchprof_hooks.capture.sampling.sampled_steps import SampledSteps

pytestmark = pytest.mark.usefixtures("clock")


class Optimizer(torch.optim.Optimizer):
    """Takes its time, and calls a closure if it is given one."""

    def __init__(self, model: nn.Module, takes_ms: float, fails: bool = False) -> None:
        super().__init__(model.parameters(), {})
        self.takes_ms, self.fails = takes_ms, fails
        self.inner: Optimizer | None = None

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        burn(self.takes_ms)
        if self.fails:
            raise ValueError("on purpose")
        if closure is not None:
            closure()
        if self.inner is not None:
            self.inner.step()


@contextmanager
def counting() -> Iterator[SampledSteps]:
    """A program of which the ends of steps are seen, and phases are timed."""
    with sampled(Level.STEPS) as sampler:
        sampler._scheduler.prices.times_phases = True
        yield sampler


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, calls: int = 1
) -> None:
    for _ in range(steps):
        for _ in range(calls):
            burn(1)
            model(torch.ones(1)).sum().backward()
        optimizer.step()


def test_of_all_steps() -> None:
    model = nn.Sequential(Work(2, 5), Work(1, 3))
    with counting() as sampler:
        train(model, Optimizer(model, 4), 6, calls=3)
        counted = sampler.strata().counted
    assert counted.steps == 5  # the first one is looked into
    assert counted.backward_ns == 5 * 3 * 8 * MS
    assert counted.optimizers_ns == 5 * 4 * MS


def test_what_comes_after_the_last_step_has_none() -> None:
    model = Work(2, 5)
    with sampled(Level.MODULES, *[Level.STEPS] * 3) as sampler:
        optimizer = Optimizer(model, 4)
        for step in range(16):
            sampler._scheduler.prices.times_phases = step < 8
            train(model, optimizer, 1)
        burn(10_000)
        counted = sampler.strata().counted
    assert counted.steps == 11
    assert counted.profile.wall_ns == (11 * 12 + 10_000) * MS
    assert counted.backward_ns == 11 * 5 * MS
    assert counted.optimizers_ns == 11 * 4 * MS


def slower_at_first(slow: int, steps: int) -> Strata:
    """A program that takes ten times as long in its first steps, where phases are
    timed, as in the others: of each four, three are only counted."""
    model = Work()
    with sampled(Level.MODULES, *[Level.STEPS] * 3) as sampler:
        optimizer = Optimizer(model, 0)
        for step in range(steps):
            unit = 10 if step < slow else 1
            sampler._scheduler.prices.times_phases = step < slow
            model.forward_ms, model.backward_ms = 2 * unit, 5 * unit
            optimizer.takes_ms = 4 * unit
            train(model, optimizer, 1)
        return sampler.strata()


def test_nodes_that_take_longer_where_they_are_timed() -> None:
    """Steps that are timed are long ones."""
    strata = slower_at_first(slow=9, steps=13)
    counted = strata.counted
    assert counted.profile.wall_ns == (6 * 111 + 3 * 12) * MS
    timed_ns = counted.backward_ns, counted.optimizers_ns
    assert timed_ns == pytest.approx((63 * 5 * MS, 63 * 4 * MS), rel=0.01)


def test_few_steps_that_were_timed_do_not_stand_for_all() -> None:
    """Those that were looked into are from all of the program."""
    strata = slower_at_first(slow=5, steps=61)
    counted = strata.counted
    assert (counted.backward_ns, counted.optimizers_ns) == (0, 0)
    found = strata.estimate(of_functions=False, warm_up=False)
    assert sum(totals.self_ns for totals in found.cells.values()) == found.wall_ns
    times = found.phase_times_ns()
    units = 4 * 10 + 56
    assert times["backward"] == pytest.approx(units * 5 * MS, rel=0.03)
    assert times["optimizer"] == pytest.approx(units * 4 * MS, rel=0.03)


def test_an_estimate_has_them_as_they_were_timed() -> None:
    """Not as in the steps that were looked into, of which backward was shorter."""
    model = Work(2, 5)
    with sampled(Level.MODULES, *[Level.STEPS] * 5) as sampler:
        sampler._scheduler.prices.times_phases = True
        optimizer = Optimizer(model, 4)
        for step in range(7):
            model.backward_ms = 5 if step < 2 else 10
            optimizer.takes_ms = 4 if step < 2 else 2
            train(model, optimizer, 1)
        found = sampler.strata().estimate(of_functions=False, warm_up=False)
    times = found.phase_times_ns()
    assert times["backward"] == (5 + 5 * 10) * MS
    assert times["optimizer"] == (4 + 5 * 2) * MS
    assert times["forward"] + times["outside"] == (6 * 2 + 6 * 1) * MS
    assert sum(totals.self_ns for totals in found.cells.values()) == found.wall_ns


def test_a_closure_is_not_the_optimizers_time() -> None:
    model = Work(2, 5)
    optimizer = Optimizer(model, 4)
    times = timing()

    def closure() -> torch.Tensor:
        loss: torch.Tensor = model(torch.ones(1)).sum()
        loss.backward()
        return loss

    with times as phases:
        optimizer.step(closure)
    assert (phases.passes_ns, phases.optimizers_ns) == (5 * MS, 4 * MS)


class Told:
    """Passes on what optimizers tell."""

    def __init__(self, times: PhaseTimes) -> None:
        self.times = times

    def optimizer_pre(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.times.optimizer_begins(optimizer)

    def optimizer_post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.times.optimizer_ends(optimizer)

    def begin_closure(self) -> Callable[[], object]:
        return self.times.begin_closure()


@contextmanager
def timing() -> Iterator[PhaseTimes]:
    times = PhaseTimes()
    told = Told(times)
    attachments.attach(optimizer_hooks, told)
    times.open()
    try:
        yield times
    finally:
        times.close()
        attachments.detach(optimizer_hooks, told)


def test_an_inner_optimizer_is_a_part_of_the_outer_one() -> None:
    outer, inner = Optimizer(nn.Linear(1, 1), 4), Optimizer(nn.Linear(1, 1), 3)
    outer.inner = inner
    with timing() as times:
        outer.step()
        inner.step()
    assert times.optimizers_ns == (4 + 3 + 3) * MS


def test_a_step_that_fails_is_forgotten() -> None:
    optimizer = Optimizer(nn.Linear(1, 1), 4, fails=True)
    with timing() as times:
        with pytest.raises(ValueError, match="on purpose"):
            optimizer.step()
        burn(100)
        optimizer.fails = False
        optimizer.step()
    assert times.optimizers_ns == 4 * MS


def test_a_pass_inside_of_another_one_is_a_part_of_it() -> None:
    @torch.enable_grad()
    def run_another() -> None:
        burn(3)
        Work(1, 2)(torch.ones(1)).sum().backward()

    x = torch.ones(1, requires_grad=True)
    with timing() as times:
        DoesInBackward.apply(x, run_another).sum().backward()
    assert times.passes_ns == (3 + 1 + 2) * MS


def test_a_pass_that_fails_counts_as_far_as_it_came() -> None:
    def fail() -> None:
        burn(3)
        raise ValueError("on purpose")

    x = torch.ones(1, requires_grad=True)
    with timing() as times, pytest.raises(ValueError, match="on purpose"):
        DoesInBackward.apply(x, fail).sum().backward()
    assert times.passes_ns == 3 * MS
    assert not times.passes


def test_other_threads_are_not_timed() -> None:
    with timing() as times:
        in_thread(lambda: train(Work(2, 5), Optimizer(Work(), 4), 2))
    assert times.passes_ns == times.optimizers_ns == 0


@pytest.mark.parametrize(
    ("step_ms", "times_phases"), [(0.0, False), (0.8, False), (1.2, True)]
)
def test_they_are_timed_where_that_is_a_small_part_of_the_budget(
    step_ms: float, times_phases: bool
) -> None:
    prices = Prices(CountedCosts(3000, 6000, 5000, 7000, 3000))
    counts = prices.counted_ns(Level.STEPS)
    prices.of(Ended(Run(Level.MODULES), round(step_ms * MS)))
    prices.choose_watching(0.02)  # of 1 ms, a quarter of the budget is 5 us
    assert prices.times_phases == times_phases
    assert prices.counted_ns(Level.STEPS) == counts + 5000 * times_phases
