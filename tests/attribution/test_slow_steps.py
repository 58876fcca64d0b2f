"""What slow steps did differently, to the nanosecond: a usual step takes 2 ms to load
data, 4 in forward, 6 in backward, 3 in the optimizer and 1 outside."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from tests.attribution.test_garbage import TAKES_MS, long_collections
from tests.doing import Does, DoesInBackward
from tests.fake_clock import MS, burn
from tests.planted import Work
from torchprof_hooks import Profile, profile, region
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.step_history import SlowStep

pytestmark = pytest.mark.usefixtures("clock")

USUAL: Mapping[str, float] = {
    "data": 2,
    "forward": 4,
    "backward": 6,
    "optimizer": 3,
    "outside": 1,
}
USUAL_MS = sum(USUAL.values())
STEPS, SLOW = 40, 21
#: How much longer the slow step takes, in ms.
MORE = 40


class DoesBoth(nn.Module):
    """Does something in forward, and something else in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.in_forward = self.in_backward = lambda: None

    def forward(self, x: torch.Tensor) -> Any:
        self.in_forward()
        return DoesInBackward.apply(x, self.in_backward)


class Burning(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        burn(USUAL["optimizer"])
        return super().step(closure)


class Rows(IterableDataset[torch.Tensor]):
    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(1, self.loop.steps + 1):
            burn(USUAL["data"])
            self.loop.do("data", number)
            yield torch.ones(2)


class Loop:
    """Trains. `slow` has what is done besides in a step, by its number and place."""

    def __init__(self, steps: int = STEPS) -> None:
        self.steps = steps
        self.slow: dict[tuple[str, int], Callable[[], object]] = {}
        self.work, self.inner = Work(4, 6), DoesBoth()
        self.model = nn.Sequential(self.work, self.inner)
        self.optimizer = Burning(self.model.parameters(), 0.1)

    def plant(self, place: str, more_ms: float = MORE, number: int = SLOW) -> None:
        self.slow[place, number] = lambda: burn(more_ms)

    def do(self, place: str, number: int) -> None:
        self.slow.get((place, number), lambda: None)()

    def run(self) -> None:
        for number, x in enumerate(DataLoader(Rows(self), batch_size=None), 1):
            self.step(x, number)

    def step(self, x: torch.Tensor, number: int) -> None:
        self.inner.in_forward = lambda: self.do("forward", number)
        self.inner.in_backward = lambda: self.do("backward", number)
        self.model(x).sum().backward()
        burn(USUAL["outside"])
        self.do("outside", number)
        self.end(number)

    def end(self, number: int) -> None:
        self.optimizer.step()


def found_ms(step: SlowStep) -> dict[str, float]:
    """How long each phase took, in ms."""
    assert sum(each.self_ns for each in step.phases) == step.duration_ns
    assert sum(each.usual_ns for each in step.phases) == step.usual_ns
    usual = {each.phase: each.usual_ns / MS for each in step.phases if each.usual_ns}
    assert usual == USUAL
    return {each.phase: each.self_ns / MS for each in step.phases}


@pytest.mark.parametrize("options", [{}, {"functions": True, "memory": True}], ids=len)
@pytest.mark.parametrize("place", ["data", "forward", "backward", "outside"])
def test_a_slow_step_says_where_it_took_longer(place: str, options: Any) -> None:
    loop = Loop()
    loop.plant(place)
    with profile(**options) as prof:
        loop.run()
    [slow] = prof.profile.slow_steps
    assert (slow.number, slow.more_ns) == (SLOW, MORE * MS)
    assert slow.usual_ns == USUAL_MS * MS
    assert found_ms(slow) == {**USUAL, place: USUAL[place] + MORE}
    assert slow.phases[0].phase == place  # the largest difference first
    module = "Sequential.1" if place in ("forward", "backward") else ""
    assert slow.module == module
    if module:
        assert (slow.module_ns, slow.module_usual_ns) == (MORE * MS, 0)
    check_history(prof.profile)


def check_history(found: ProfileData) -> None:
    history, times = found.step_history, found.step_times
    assert history.first == 2
    assert sum(history.stretch_steps) == times.later_steps
    assert sum(history.stretch_ns) == times.later_ns
    longest = {each.first: each.longest_ns for each in history.stretches}
    assert longest[SLOW] == (USUAL_MS + MORE) * MS


def test_garbage_is_told_apart_from_the_module_that_it_interrupts() -> None:
    loop = Loop()
    loop.slow["forward", SLOW] = gc.collect
    with profile() as prof, long_collections():
        loop.run()
    [slow] = prof.profile.slow_steps
    assert found_ms(slow) == {**USUAL, "garbage": TAKES_MS}
    assert slow.module == ""


def test_compiling_again_is_told() -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        burn(MORE)
        return graph.forward

    compiled = torch.compile(lambda x: x + 1, backend=backend, dynamic=False)
    compiled(torch.ones(2))
    loop = Loop()
    loop.slow["outside", SLOW] = lambda: compiled(torch.ones(3))
    with profile() as prof:
        loop.run()
    [slow] = prof.profile.slow_steps
    assert found_ms(slow) == {**USUAL, "compiling": MORE}


def test_the_first_step_is_not_slow_and_steady_steps_are_not() -> None:
    loop = Loop()
    loop.plant("data", number=1)
    with profile() as prof:
        loop.run()
    assert prof.profile.slow_steps == ()
    assert prof.profile.start_up.wall_ns == (USUAL_MS + MORE) * MS


def test_a_slow_step_is_known_before_it_is_known_what_is_usual() -> None:
    loop = Loop()
    loop.plant("forward", number=2)
    with profile() as prof:
        loop.run()
    [slow] = prof.profile.slow_steps
    assert (slow.number, slow.more_ns, slow.module) == (2, MORE * MS, "Sequential.1")


def test_what_is_usual_is_not_known_from_few_steps() -> None:
    loop = Loop(8)
    loop.plant("forward", number=5)
    with profile() as prof:
        loop.run()
    assert prof.profile.slow_steps == ()


def test_evaluation_is_no_part_of_a_step() -> None:
    loop = Loop()

    @torch.no_grad()
    def evaluate() -> None:
        for _ in range(3):
            loop.model(torch.ones(2))

    class Evaluating(Loop):
        def end(self, number: int) -> None:
            super().end(number)
            if number % 10 == 0:
                evaluate()

    loop = Evaluating()
    loop.plant("data")
    with profile() as prof:
        loop.run()
    assert prof.profile.step_times.evaluations == 12
    [slow] = prof.profile.slow_steps
    assert found_ms(slow) == {**USUAL, "data": 2 + MORE}


def test_steps_that_share_a_region_are_not_compared() -> None:
    loop = Loop()
    loop.plant("data")
    with profile() as prof, region("epoch"):
        loop.run()
    assert prof.profile.step_times.slow_steps() == (1, MORE * MS)
    assert prof.profile.slow_steps == ()


def test_what_was_paused_is_no_part_of_a_step() -> None:
    loop, prof = Loop(), profile()

    def pause() -> None:
        prof.stop()
        burn(1000)
        prof.start()

    loop.slow["outside", 11] = pause
    loop.plant("data")
    with prof:
        loop.run()
    [slow] = prof.profile.slow_steps
    assert found_ms(slow) == {**USUAL, "data": 2 + MORE}


def test_the_slowest_are_kept_and_the_history_is_bounded() -> None:
    """However many steps there are."""
    work = Work(1, 0)
    optimizer = torch.optim.SGD(work.parameters(), 0.1)
    with profile() as prof:
        for number in range(1, 2_501):
            work(torch.ones(2)).sum().backward()
            if number % 100 == 0:
                burn(10 + number / 100)
            optimizer.step()
    found: Profile = prof.profile
    history = found.step_history
    assert found.step_times.slow_steps()[0] == 25
    expected = [(number, 11 + number / 100) for number in range(2_500, 900, -100)]
    assert [(s.number, s.duration_ns / MS) for s in found.slow_steps] == expected
    # Of the other 9 slow ones, each step has its share.
    others_ms = sum(10 + number / 100 for number in range(100, 901, 100))
    [usual_ns] = {s.usual_ns for s in found.slow_steps}
    assert usual_ns == round(MS * (1 + others_ms / (2_499 - len(expected))))
    assert 256 <= len(history.stretch_steps) <= 512
    assert {*history.stretch_steps[:-1]} == {8}
    assert sum(history.stretch_steps) == 2_499
    assert sum(history.stretch_ns) == found.step_times.later_ns
    assert max(history.longest_ns) == 36 * MS


def test_a_module_that_no_usual_step_calls() -> None:
    loop = Loop()
    loop.slow["outside", SLOW] = lambda: Does(lambda: burn(MORE))(
        torch.ones(2, requires_grad=True)
    )
    with profile() as prof:
        loop.run()
    [slow] = prof.profile.slow_steps
    assert (slow.number, slow.module, slow.module_ns) == (SLOW, "Does", MORE * MS)
    assert "step 21: 56.00ms, usual 16.00ms: forward +40.00ms (own t" in prof.report()
