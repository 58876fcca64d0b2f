"""What came until the first training step had ended is apart from the loop, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.cost.loops import sgd
from tests.exact import calls, each_option, numbers
from tests.fake_clock import MS, burn
from tests.helpers import in_thread
from tests.planted import Work
from torchprof_hooks import Profile, profile
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
