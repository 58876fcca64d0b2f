"""What timers of functions alone have; for more see tests/seeds/link_hooks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.functions import ONE, x
from tests.helpers import close, occurrences
from tests.seeds.link_hooks.planted import functions
from torchprof_hooks.function_hooks import TimerHook

pytestmark = pytest.mark.usefixtures("clock")

INPUT = x()


# Phases


def test_phases_have_sums_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    with TimerHook(phases=True) as hook:
        functions().step(int)

    fields = ("elapsed_time", "forward_time", "backward_time", "recompute_time")
    times: Any = {
        name: [sums[field] for field in fields]  # type: ignore[literal-required]
        for name, sums in hook.summary().items()
    }
    assert times == {
        "clone": [0, 0, 0, 0],
        "Inner": [0.004, 0.004, 0, 0],
        "Runs": [close(0.011), 0.005, 0.006, 0],
        "sum": [0, 0, 0, 0],
    }
    hook.print_report()
    header, _, inner, runs, _ = capsys.readouterr().out.splitlines()
    shown = ["ElapsedTime", "ForwardTime", "BackwardTime"]  # nothing was recomputed
    assert header.split() == ["FunctionName", *shown, "Occurrence"]
    assert inner.split() == ["Inner", "4.00ms", "4.00ms", "0.00ms", "1"]
    assert runs.split() == ["Runs", "11.00ms", "5.00ms", "6.00ms", "2"]


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_a_phase(reentrant: bool) -> None:
    with TimerHook(phases=True) as hook:
        INPUT.cos()
        checkpoint(
            lambda t: t.exp().sin(), INPUT, use_reentrant=reentrant
        ).sum().backward(ONE)
    summary = hook.summary()

    # In forward, recomputed, and in backward. The other checkpoint leaves sin by an
    # exception, as soon as it has what it needs.
    assert occurrences(hook)["exp"] == 3
    assert occurrences(hook)["sin"] == (3 if reentrant else 2)
    assert summary["exp"]["recompute_time"] > 0
    assert summary["cos"]["recompute_time"] == 0
    for sums in summary.values():
        phases = sums["forward_time"] + sums["backward_time"] + sums["recompute_time"]
        assert phases == close(sums["elapsed_time"])


# Modules and calls


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.fc(x).relu() + self.fc(x.narrow(0, 0, 1))
        return result


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize(
    ("by", "expected"),
    [
        # linear twice; relu, narrow and +; sum. All of them with a backward: INPUT is a
        # leaf that needs gradients.
        ("function", {"linear": 4, "relu": 2, "narrow": 2, "add": 2, "sum": 2}),
        ("module", {"Net.fc": 4, "Net": 6, "(outside modules)": 2}),
        (
            "call",
            {
                "Net.fc: linear(2x3, 5x3, 5)": 2,
                "Net: relu(2x5)": 2,
                "Net: narrow(2x3)": 2,
                "Net.fc: linear(1x3, 5x3, 5)": 2,
                "Net: add(2x5, 1x5)": 2,
                "sum(2x5)": 2,
            },
        ),
    ],
)
def test_what_calls_are_named_by(by: Any, expected: dict[str, int]) -> None:
    net = Net()
    with TimerHook(by=by) as hook:
        net(INPUT).sum().backward(ONE)

    assert occurrences(hook) == Counter(name for name, _ in hook.call_history)
    assert occurrences(hook) == expected
    for name, sums in hook.summary().items():
        seconds = [s for called, s in hook.call_history if called == name]
        assert sums["elapsed_time"] == close(sum(seconds))
    assert hook.total_time() == close(sum(s for _, s in hook.call_history))
