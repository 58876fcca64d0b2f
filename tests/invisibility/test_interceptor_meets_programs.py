"""What programs do where module calls are seen comes out as it does alone, and all of
their calls are seen."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

from tests.exact import calls, found
from tests.fake_clock import burn
from torchprof_hooks import profile
from torchprof_hooks.kernel.tracker import Tracker

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
