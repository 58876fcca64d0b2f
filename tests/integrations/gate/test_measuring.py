"""Steps of planted work, measured."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
import torch
from torch import nn

from tests.fake_clock import MS, FakeClock, burn
from torchprof_hooks.integrations.gate import measuring
from torchprof_hooks.integrations.gate.baseline import STEP
from torchprof_hooks.integrations.gate.measuring import measure

pytestmark = pytest.mark.usefixtures("clock", "planted_reference")


#: Three before anything counts, and one that names all modules.
WARM_UP_CALLS: Final = 4


@pytest.fixture
def planted_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the real one, only its time is planted."""
    forward = measuring.Matrices.forward

    def planted(self: measuring.Matrices) -> None:
        burn(40)
        forward(self)

    monkeypatch.setattr(measuring.Matrices, "forward", planted)


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, backward_ms: float) -> torch.Tensor:
        ctx.backward_ms = backward_ms
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        burn(ctx.backward_ms)
        return gradient, None


class Busy(nn.Linear):
    """Takes so long in forward, by the number of the call, and in backward."""

    def __init__(
        self, forward_ms: Callable[[int], float], backward_ms: float = 5
    ) -> None:
        super().__init__(2, 2)
        self.forward_ms = forward_ms
        self.backward_ms = backward_ms
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        burn(self.forward_ms(self.calls))
        self.calls += 1
        result: torch.Tensor = Backward.apply(super().forward(x), self.backward_ms)
        return result


def trained(*modules: nn.Module, outside_ms: float = 0) -> Callable[[], None]:
    """A step that trains these, one after the other."""
    model = nn.Sequential(*modules)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step() -> None:
        optimizer.zero_grad()
        burn(outside_ms)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    return step


def rows_in_ms(
    rows: Mapping[str, Mapping[str, int]],
) -> dict[str, dict[str, float]]:
    found = {
        name: {phase: ns / MS for phase, ns in phases.items() if ns}
        for name, phases in rows.items()
    }
    return {name: phases for name, phases in found.items() if phases}


def lows_of(step: Callable[[], None]) -> tuple[int, dict[str, dict[str, float]]]:
    run = measure(step, 10).run()
    rows = rows_in_ms({name: low.phases for name, low in run.rows.items()})
    return run.arithmetic_ns, rows


def test_own_times_of_modules_in_a_step_and_of_the_reference() -> None:
    step = trained(Busy(lambda _: 20), Busy(lambda _: 30), outside_ms=3)
    assert lows_of(step) == (
        40 * MS,
        {
            STEP: {"forward": 3},
            "Sequential.0": {"forward": 20, "backward": 5},
            "Sequential.1": {"forward": 30, "backward": 5},
        },
    )


def test_rounds_in_which_the_machine_did_something_else_do_not_count() -> None:
    """Not even if all of a step was never left alone, but each of its parts was."""

    def disturbed_but_in(turn: int) -> Callable[[int], float]:
        return lambda call: 20 if call % 4 == turn else 90

    step = trained(Busy(disturbed_but_in(0)), Busy(disturbed_but_in(3)))
    _, rows = lows_of(step)
    assert rows["Sequential.0"]["forward"] == 20
    assert rows["Sequential.1"]["forward"] == 20


def test_short_steps_are_made_several_times_in_a_round() -> None:
    """Of each round, it is the mean."""
    module = Busy(lambda call: 0.3 - 0.1 * (call % 2), backward_ms=0)
    _, rows = lows_of(trained(module))
    assert rows["Sequential.0"]["forward"] in (0.24, 0.26)  # 5 steps in a round


def test_it_stops_when_three_blocks_agree() -> None:
    """Blocks of eight rounds, which take longer than half a second."""
    module = Busy(lambda _: 95)
    assert measure(trained(module), 1000).disagreement() == 0
    assert module.calls == WARM_UP_CALLS + 6 * 8


def test_it_stops_when_its_time_is_over(clock: FakeClock) -> None:
    """On a machine that is slower all the time."""
    began_ns = clock.now_ns
    module = Busy(lambda call: 95 * (1 + call / 100))
    assert measure(trained(module), 20).disagreement() > 0.03
    warm_up_s, round_s = 0.5, 0.4
    assert 20 <= (clock.now_ns - began_ns) / 1e9 < 20 + warm_up_s + round_s


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(is_enabled: bool) -> None:
    seen: list[bool] = []
    step = trained(Busy(lambda _: 50))

    def looks() -> None:
        step()
        seen.append(gc.isenabled())

    was_enabled = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        measure(looks, 10)
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
    assert not any(seen)


def test_what_a_step_raises_is_the_users() -> None:
    def fails() -> None:
        raise KeyError("batch")

    was_enabled = gc.isenabled()
    with pytest.raises(KeyError, match="batch"):
        measure(fails, 10)
    assert gc.isenabled() == was_enabled
