"""What came until the first training step had ended is apart from the loop, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.cost.loops import sgd
from tests.exact import calls, each_option, numbers, own_ms
from tests.fake_clock import MS, burn
from tests.helpers import in_thread
from tests.planted import Work
from torchprof_hooks import Profile, profile
from torchprof_hooks.kernel import ended_steps
from torchprof_hooks.profiler import Profiler
from torchprof_hooks.profiles.cells import CellKey

pytestmark = pytest.mark.usefixtures("clock")

FORWARD: CellKey = (("Slow",), "forward")
BACKWARD: CellKey = (("Slow",), "backward")


class Slow(Work):
    """Takes 100 ms more when it is called first."""

    is_new = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_new:
            burn(100)
            self.is_new = False
        return super().forward(x)


def train(model: nn.Module, optimizers: Sequence[Any], steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(2)).sum().backward()
        burn(1)
        for optimizer in optimizers:
            optimizer.step()


def check_parts(found: Profile) -> None:
    """They have all that there is, and no more."""
    start_up, loop = found.start_up, found.loop
    assert start_up.steps + loop.steps == found.steps
    assert start_up.wall_ns + loop.wall_ns == found.wall_ns
    for key, whole in found.cells.items():
        parts = [part.cells[key] for part in (start_up, loop) if key in part.cells]
        for name in ("calls", "self_ns", "duration_ns", "squares_ns2"):
            assert sum(getattr(part, name) for part in parts) == getattr(whole, name)
    for part in (start_up, loop):
        assert sum(t.self_ns for t in part.cells.values()) == part.wall_ns


@each_option
def test_the_first_step_is_apart(options: dict[str, Any]) -> None:
    model = Slow(4, 6)
    with profile(**options) as prof:
        burn(50)
        train(model, [sgd(model)], 4)
        burn(7)
    found = prof.profile
    check_parts(found)
    whole, loop, start_up = found.cells, found.loop.cells, found.start_up.cells
    modules = (FORWARD, BACKWARD)
    if "functions" not in options:
        assert [numbers(start_up[key]) for key in modules] == [calls(104), calls(6)]
        assert numbers(loop[BACKWARD]) == calls(6, 6, 6)
        assert numbers(loop[FORWARD]) == calls(4, 4, 4)
    assert found.start_up.wall_ns == (50 + 104 + 6 + 1) * MS
    assert found.loop.wall_ns == (3 * (4 + 6 + 1) + 7) * MS
    assert whole[FORWARD].calls == loop[FORWARD].calls + 1


def test_a_step_that_ends_in_a_call_of_a_module() -> None:
    class Trains(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Slow(4, 6)
            self.optimizer = sgd(self.inner)

        def forward(self) -> None:
            train(self.inner, [self.optimizer], 1)
            burn(3)

    model = Trains()
    with profile() as prof:
        for _ in range(3):
            model()
    found = prof.profile
    check_parts(found)
    assert found.start_up.wall_ns == (100 + 4 + 6 + 1) * MS
    assert found.start_up.cells[("Trains",), "forward"].calls == 0  # it goes on
    assert found.loop.cells[("Trains",), "forward"].calls == 3


def test_without_another_step_nothing_is_apart() -> None:
    model = Slow(4, 6)
    with profile() as prof:
        train(model, [sgd(model)], 1)
    assert prof.profile.start_up.steps == 1
    assert "start-up" not in prof.report()
    with prof:
        train(model, [sgd(model)], 1)
    assert "111.00ms start-up with the first step, then 11.00ms" in prof.report()


def taken_in_parts(prof: Profiler, takes: bool, steps: int = 3) -> list[Profile]:
    """What is taken after each of three loops; or all of them, as one profile."""
    model, parts = Slow(4, 6), []
    optimizer = sgd(model)
    for _ in range(3):
        with prof:
            train(model, [optimizer], steps)
        if takes:
            parts.append(prof.take())
    return parts if takes else [prof.profile]


@pytest.mark.parametrize("steps", [1, 3])
def test_parts_that_are_taken_are_those_of_one_run(steps: int) -> None:
    prof = profile()
    first, *later = taken_in_parts(prof, takes=True, steps=steps)
    assert first.start_up.steps == 1
    for part in later:
        assert ([p.name for p in part.parts], part.steps) == (["loop"], steps)
        assert part.step_times.first_steps == 0
        assert part.step_times.later_steps == steps
    [whole] = taken_in_parts(profile(), takes=False, steps=steps)
    merged = prof.profile
    check_parts(merged)
    assert merged == reduce(Profile.merge, (first, *later))
    assert merged.step_times == whole.step_times
    assert merged.wall_ns == whole.wall_ns
    assert (merged.start_up.steps, merged.loop.steps) == (1, 3 * steps - 1)
    assert own_ms(merged) == own_ms(whole)
    assert own_ms(merged.start_up) == own_ms(whole.start_up)


@pytest.mark.parametrize("is_made", [True, False])
def test_parts_without_an_optimizer_of_torchs_count_each_step_once(
    monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    """The first step is not known where there is none in the process."""
    monkeypatch.setattr(ended_steps, "any_optimizer_made", lambda: is_made)
    prof, model = profile(), Slow(4, 6)
    for number in range(3):
        with prof:
            train(model, [], 3)
        if not number and not is_made:
            found = prof.profile
            assert [part.steps for part in found.parts] == [1, 2]
        part = prof.take()
        assert part.steps == 3
        assert part.step_times.first_steps == (number == 0)
    assert prof.profile.steps == 9


def test_blocks_go_on_with_the_next_part() -> None:
    """The first steps of a part are not measured because they are the first."""
    some: dict[str, Any] = {"steps": 2, "every": 5}
    parts = taken_in_parts(profile(**some), takes=True)
    assert [part.steps for part in parts] == [3, 3, 3]
    measured = [
        sum(p.steps for p in of.parts[:2] if p.name != "unmeasured") for of in parts
    ]
    assert measured == [2, 1, 1]
    [whole] = taken_in_parts(profile(**some), takes=False)
    merged = reduce(Profile.merge, parts)
    assert merged.step_times == whole.step_times
    assert merged.wall_ns == whole.wall_ns


def test_each_thread_has_its_own(tmp_path: Path) -> None:
    prof = profile()

    def work() -> None:
        model = Slow(4, 6)
        with prof:
            train(model, [sgd(model)], 3)

    for _ in range(2):
        in_thread(work)
    merged = prof.profile
    check_parts(merged)
    assert (merged.start_up.steps, merged.loop.steps) == (2, 4)
    merged.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == merged
