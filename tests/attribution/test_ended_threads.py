"""One profiler for threads that end, as a server has one for each request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.fake_clock import MS, burn
from tests.helpers import in_thread
from tests.registered import registered
from torchprof_hooks import profile
from torchprof_hooks.hooks import measuring
from torchprof_hooks.profiles.data import ProfileData

KEPT = 3
pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture(autouse=True)
def few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "ENDED_KEPT", KEPT)


class Burns(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        burn(2)
        return super().forward(x)


def step() -> None:
    Burns(3, 3)(torch.ones(2, 3)).sum().backward()


def calls(found: ProfileData) -> int:
    return sum(row.calls for row in found.rows() if row.name == "Burns")


def in_threads(count: int, work: Callable[[], object]) -> None:
    for _ in range(count):
        in_thread(work)


@pytest.mark.parametrize("options", [{}, {"functions": True}], ids=str)
def test_threads_that_have_ended_are_kept_as_one_profile(
    options: dict[str, Any],
) -> None:
    prof = profile(**options)
    in_threads(4 * KEPT, prof(step))

    assert len(prof._threads.rounds) == KEPT
    row = {row.name: row for row in prof.profile.rows()}["Burns"]
    assert row.phases["forward"].calls == row.phases["backward"].calls == 4 * KEPT
    assert row.phases["forward"].self_ns == 4 * KEPT * 2 * MS
    assert prof.profile.wall_ns == 4 * KEPT * 2 * MS


def test_where_some_steps_are_measured(no_optimizer: None) -> None:
    prof = profile(steps=1)
    in_threads(4 * KEPT, prof(step))
    assert len(prof._threads.rounds) == KEPT
    assert prof.profile.steps == 4 * KEPT


def test_a_thread_that_ends_without_a_stop_is_measured_until_then() -> None:
    """The system gives its number to the next thread."""
    prof, other = profile(), Burns(3, 3)

    def begin() -> None:
        prof.start()
        prof.start()
        step()
        burn(3)

    before = registered()
    for _ in range(5):
        in_thread(begin)
        assert registered() == before
        in_thread(lambda: other(torch.ones(2, 3)))
    assert calls(prof.profile) == 5
    assert prof.profile.wall_ns == 5 * 5 * MS
    assert not prof._threads.is_entered()
    in_threads(4 * KEPT, begin)
    assert len(prof._threads.rounds) == KEPT
