"""A handler of a signal may run wherever Python does, in the middle of bookkeeping, and
call modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.helpers import run_traced
from torchprof_hooks import profile
from torchprof_hooks.files.collector import without_collections

X = torch.ones(4, 8)
PROBE = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
PACKAGE = str(Path(torchprof_hooks.__file__).parent)

#: After so many steps, it is known how long they usually take.
WARM_UP = 20
#: What is done in two steps is done again in at most so many.
SELDOM = 64
#: An instruction of a function.
Place = tuple[CodeType, int]


def handle() -> None:
    with torch.no_grad():
        PROBE(torch.ones(2, 4))


def traced(
    step: Callable[[], None],
    before: Callable[[Place], object],
    only: CodeType | None = None,
) -> None:
    """Make a step, with `before` called before each instruction of the package, or of
    one function of it."""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        is_other = only is not None and code is not only
        if is_other or not code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before((code, frame.f_lasti))
        return trace

    run_traced(step, trace)


@pytest.mark.usefixtures("clock")  # no step is a slow one
def test_what_one_calls_raises_nothing() -> None:
    """The numbers of that step may be off, but they add up."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.0)

    def step() -> None:
        model(X).sum().backward()
        optimizer.step()

    first: dict[Place, None] = {}
    second: dict[Place, None] = {}
    # Each step is to go through the same places.
    with without_collections(), profile() as prof:
        for _ in range(WARM_UP):  # what is met first is a matter of its own
            step()
        traced(step, first.setdefault)
        traced(step, second.setdefault)
        steps = WARM_UP + 2
        places = [each for each in first if each in second]
        for each in places:
            left = [each]

            def before(place: Place, left: list[Place] = left) -> None:
                if left == [place]:
                    left.clear()
                    handle()

            for _ in range(SELDOM):
                if left:
                    traced(step, before, only=each[0])
                    steps += 1
            assert not left
    found = prof.profile
    assert len(places) > 100
    assert sum(t.self_ns for t in found.cells.values()) == found.wall_ns
    assert min(t.self_ns for t in found.cells.values()) >= 0
    assert found.steps == steps
