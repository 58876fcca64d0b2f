"""Memory does not grow with steps, and starting costs little: by counts, not clocks."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.cores import PYTHON_CORE
from tests.programs import TORCH, python
from tests.thorough import THOROUGH
from torchprof_hooks import function_hooks, link_hooks
from torchprof_hooks.capture.core import CORE, reference, reference_meters, span_log
from torchprof_hooks.capture.record import memory_log
from torchprof_hooks.link_hooks import TimerHook
from torchprof_hooks.profiler import Profiler

#: Logs between two foldings hold up to 768 integers here, those of memory 640. That is
#: less than what 3 000 calls leave behind if each leaves one object.
LOG_BLOCKS = 2_000


@pytest.fixture(autouse=True)
def short_logs(small_tables: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "FOLD_AT", span_log.FIELDS * 256)
    monkeypatch.setattr(reference_meters, "FOLD_AT", memory_log.FIELDS * 128)


def run(model: nn.Module, calls: int, backward: bool) -> None:
    x = torch.ones(1, requires_grad=True)
    for _ in range(calls):
        y = model(x)
        if backward:
            y.backward()


def new_model() -> nn.Module:
    """Three modules."""
    return nn.Sequential(nn.Softplus(), nn.Sequential(nn.Softplus()))


def growth(work: Callable[[], None]) -> int:
    """How many more blocks of memory Python holds after `work` than before: each object
    has one."""
    gc.collect()
    before = sys.getallocatedblocks()
    work()
    gc.collect()
    return sys.getallocatedblocks() - before


def read(measurer: Any) -> None:
    """Empty its logs, as whoever looks at numbers does."""
    if isinstance(measurer, Profiler):
        assert measurer.profile.cells
    else:
        assert measurer.summary()


class CountingHook(torchprof_hooks.FunctionHook):
    def __init__(self) -> None:
        self.calls = 0

    def forward_preprocess(self, function: Any, in_data: Any) -> None:
        self.calls += 1

    def backward_postprocess(self, function: Any, in_data: Any, out_grad: Any) -> None:
        self.calls += 1


MEASURERS: dict[str, Callable[[], Any]] = {
    "profile": torchprof_hooks.profile,
    "timer": lambda: TimerHook(history_size=200),
    "timer with backward": lambda: TimerHook(history_size=200, backward=True),
    "functions": lambda: torchprof_hooks.profile(functions=True),
    "functions and memory": lambda: torchprof_hooks.profile(
        functions=True, memory=True
    ),
    "function timer": lambda: function_hooks.TimerHook(history_size=200),
}
if CORE.module is not None:  # which bytes on the CPU need
    MEASURERS |= {
        "function memory": lambda: function_hooks.MemoryProfileHook(history_size=200),
        "module memory": lambda: link_hooks.MemoryProfileHook(history_size=200),
    }


@pytest.mark.parametrize("backward", [pytest.param(False, marks=THOROUGH), True])
@pytest.mark.parametrize("make", MEASURERS.values(), ids=MEASURERS)
def test_memory_does_not_grow(make: Callable[[], Any], backward: bool) -> None:
    model = new_model()

    def work(calls: int) -> None:
        run(model, calls, backward)
        read(measurer)

    with make() as measurer:
        work(300)
        grown = growth(lambda: work(400))
    assert grown < 400  # less than one object for each step


#: Those that have all kinds of logs.
HAVE_LOGS = "functions and memory", "function callbacks"


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=() if name in HAVE_LOGS else THOROUGH)
        for name, make in {**MEASURERS, "function callbacks": CountingHook}.items()
    ],
)
def test_memory_does_not_grow_if_nobody_looks(make: Callable[[], Any]) -> None:
    model = new_model()
    with make():
        run(model, 500, backward=True)
        grown = growth(lambda: run(model, 1000, backward=True))
    assert grown < LOG_BLOCKS


def test_modules_made_for_every_step_do_not_pile_up() -> None:
    def steps(count: int) -> None:
        for _ in range(count):
            model = nn.Sequential(nn.Softplus(), nn.Softplus())
            model(torch.ones(1, requires_grad=True)).backward()

    with torchprof_hooks.profile() as prof:
        steps(50)
        gc.collect()
        grown = growth(lambda: steps(300))
        names = {row.name for row in prof.profile.rows() if row.kind == "module"}
    assert names == {"Sequential", "Sequential.0", "Sequential.1"}
    assert grown < LOG_BLOCKS


def test_one_long_call_without_gradients_is_bounded() -> None:
    class Generate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Identity()

        def forward(self, x: torch.Tensor) -> Any:
            with torch.no_grad():
                for _ in range(3_000):
                    x = self.cell(x)
            return x

    model = Generate()
    with torchprof_hooks.profile():
        model(torch.ones(1))
        assert growth(lambda: model(torch.ones(1))) < LOG_BLOCKS


def tracker_of(prof: Profiler) -> Any:
    steps: Any = prof._rounds[0]._steps
    return steps.tracker


@pytest.mark.parametrize("functions", [False, True])
def test_a_loop_in_a_region(functions: bool) -> None:
    model = new_model()
    x = torch.ones(1, requires_grad=True)
    with (
        torchprof_hooks.profile(functions=functions) as prof,
        torchprof_hooks.region("training"),
    ):
        for _ in range(300):
            with torchprof_hooks.region("step"):
                model(x).sum().backward()
    calls = {key: each.calls for key, each in prof.profile.cells.items()}
    inner = ("training", "step", "Sequential", "Sequential.1", "Sequential.1.0")
    assert calls[inner, "backward"] == calls[inner, "forward"] == 300


class Trainer(nn.Module):
    """Trains inside of its forward; graphs of before, and some of each time, wait."""

    def __init__(self, waiting: int, every: int) -> None:
        super().__init__()
        self.model = new_model()
        self.waiting = waiting
        self.every = every

    def forward(self, x: torch.Tensor) -> Any:
        kept = [self.model(x) for _ in range(self.waiting)]
        for step in range(300):
            self.model(x).sum().backward()
            if step % self.every == 0:
                kept.append(self.model(x))
        for y in kept[::2]:
            y.backward()
        return kept[1::2]


@pytest.mark.parametrize("functions", [False, True])
def test_a_loop_in_a_forward(functions: bool) -> None:
    trainer = nn.Sequential(Trainer(waiting=0, every=1_000))
    trainer.forward = trainer[0].__call__  # type: ignore[method-assign]
    x = torch.ones(1, requires_grad=True)
    with torchprof_hooks.profile(functions=functions) as prof:
        for _ in range(2):
            trainer(x)
    calls = {key: each.calls for key, each in prof.profile.cells.items()}
    inner = [key for key in calls if key[0][-1] == "Sequential.0.model.1.0"]
    assert [calls[key] for key in inner] == [2 * 301, 2 * 301]  # and of the last, kept


@pytest.mark.parametrize("region", [False, True])
def test_graphs_that_a_forward_keeps_have_their_owners(region: bool) -> None:
    trainer = Trainer(waiting=100, every=10)
    x = torch.ones(1, requires_grad=True)
    with torchprof_hooks.profile() as prof:
        for _ in range(3):
            with torchprof_hooks.region("all") if region else nullcontext():
                kept = trainer(x)
            for y in kept:
                y.backward()
    calls = {key: each.calls for key, each in prof.profile.cells.items()}
    found = {p: n for (path, p), n in calls.items() if path[-1] == "Trainer.model.1.0"}
    assert found == {"forward": 3 * 430, "backward": 3 * 430}


def test_graphs_that_a_loop_keeps_have_their_owners() -> None:
    model = new_model()
    x = torch.ones(1, requires_grad=True)
    with torchprof_hooks.profile() as prof:
        with torchprof_hooks.region("training"):
            kept = []
            for step in range(300):
                model(x).sum().backward()
                if step % 10 == 0:
                    kept.append(model(x))
            for y in kept[::2]:
                y.backward()
        for y in kept[1::2]:
            y.backward()
    calls = {key: each.calls for key, each in prof.profile.cells.items()}
    inner = ("training", "Sequential", "Sequential.1", "Sequential.1.0")
    assert calls[inner, "backward"] == calls[inner, "forward"] == 330


@PYTHON_CORE
def test_retained_graph_does_not_collect_hooks() -> None:
    calls: list[int] = []
    model = nn.Sequential(nn.Softplus(), nn.Softplus())
    with torchprof_hooks.profile() as prof:
        loss = model(torch.ones(1, requires_grad=True))
        steps: Any = prof._rounds[0]._steps
        passes = steps.tracker.backward
        on_node = passes.on_node

        def counting(*args: Any) -> None:
            calls.append(1)
            on_node(*args)

        passes.on_node = counting
        for _ in range(50):
            loss.backward(retain_graph=True)
    rows = {row.name: row for row in prof.profile.rows()}
    assert rows["Sequential.1"].phases["backward"].calls == 50
    assert len(calls) == 2 * 50  # one for each of two nodes in each pass


@pytest.mark.slow
def test_importing_pulls_in_little_more_than_torch() -> None:
    code = (
        "import sys, torch, numpy, tabulate; before = set(sys.modules)\n"
        "import torchprof_hooks\n"
        "print('\\n'.join(set(sys.modules) - before))"
    )
    output = python("-c", code, loaded=TORCH).stdout.split()
    assert "torchprof_hooks" in output
    foreign = {n for n in output if n.split(".")[0] != "torchprof_hooks"}
    assert len(foreign) < 10
    assert not {n for n in foreign if n.startswith("torch.")}
