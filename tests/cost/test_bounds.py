"""Memory does not grow with steps, and starting costs little: by counts, not clocks."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.attribution.simulated_memory import ledger_of
from tests.cores import NATIVE_CORE
from tests.running import python
from tests.thorough import THOROUGH
from torchprof_hooks import function_hooks, link_hooks, profile
from torchprof_hooks.instruments.functions.operators import (
    SHAPES_KEPT,
    OperatorCalls,
)
from torchprof_hooks.kernel.core import CORE
from torchprof_hooks.kernel.reference import cursor as reference
from torchprof_hooks.kernel.reference import span_log
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.link_hooks import TimerHook
from torchprof_hooks.profiler import Profiler

#: Logs between two foldings hold up to 768 integers here. That is
#: less than what 3 000 calls leave behind if each leaves one object.
LOG_BLOCKS = 2_000


@pytest.fixture(autouse=True)
def short_logs(small_tables: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "FOLD_AT", span_log.FIELDS * 256)


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
        # Whoever looks at numbers empties the logs.
        is_profile = isinstance(measurer, Profiler)
        assert measurer.profile.cells if is_profile else measurer.summary()

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


class Decoder(nn.Module):
    """Each token is put behind those before it: new shapes for all functions of the
    attention, and the same ones for the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, token: Any, before: Any) -> Any:
        known = torch.cat([before, self.project(token)])
        weights = (token @ known.T).softmax(1)
        return self.last(weights @ known), known


@torch.no_grad()
def decode(model: nn.Module, tokens: int) -> None:
    token = known = torch.ones(1, 8)
    for _ in range(tokens):
        token, known = model(token, known)


#: Of its functions, these see new shapes: cat, numpy_T, softmax, and matmul twice, of
#: which each has its own.
VARYING = 5


@NATIVE_CORE
def test_shapes_without_end_ask_python_for_64_of_each_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    place = OperatorCalls.place

    def count(self: OperatorCalls, caller: Site, name: str, inputs: Any) -> Any:
        asked.append(name)
        return place(self, caller, name, inputs)

    monkeypatch.setattr(OperatorCalls, "place", count)
    model = Decoder()
    with torchprof_hooks.profile(functions=True) as prof:
        decode(model, 2 * SHAPES_KEPT + 2)  # both matmuls fill up one row's shapes
        steps: Any = prof._threads.rounds[0]._steps
        sites, found = len(steps.tracker.sites), len(asked)
        assert found < (VARYING + 6) * (SHAPES_KEPT + 2)
        asked.clear()
        decode(model, 300)
        assert not asked
        assert len(steps.tracker.sites) == sites
    rows = {row.name: row for row in prof.profile.rows("function")}
    tokens = 2 * SHAPES_KEPT + 2 + 300
    assert rows["cat"].calls == rows["softmax"].calls == tokens
    assert rows["matmul"].calls == 2 * tokens
    products = sum(2 * (2 * 8 * (n + 2)) for n in range(2 * SHAPES_KEPT + 2))
    products += sum(2 * (2 * 8 * (n + 2)) for n in range(300))
    assert rows["matmul"].flops == products


@NATIVE_CORE
def test_memory_does_not_grow_with_shapes() -> None:
    model = Decoder()
    with torchprof_hooks.profile(functions=True):
        decode(model, 300)
        grown = growth(lambda: decode(model, 3_000))
    assert grown < LOG_BLOCKS


#: Prints how many bytes more each tensor takes if memory is measured.
LIVING_TENSORS = """
from pathlib import Path
import torch
from torchprof_hooks import profile

COUNT, PAGE_BYTES = 200_000, 4096

def bytes_of_each():
    resident = Path("/proc/self/statm")
    before = int(resident.read_text().split()[1])
    tensors = [torch.empty(16) for _ in range(COUNT)]
    more = int(resident.read_text().split()[1]) - before
    return tensors, more * PAGE_BYTES / COUNT

with profile(memory="cpu"):
    torch.empty(16)
tensors, alone = bytes_of_each()
with profile(memory="cpu"):
    model, given = torch.nn.Linear(1, 1), torch.ones(1)
    for _ in range(9):  # the memory of the first steps is recorded
        model(given).sum().backward()
    model(given)
    others, measured = bytes_of_each()
print(measured - alone)
"""


@pytest.mark.thorough
@NATIVE_CORE
@pytest.mark.slow
def test_a_tensor_that_lives_takes_less_than_150_bytes_of_ours() -> None:
    taken = float(python("-c", LIVING_TENSORS, fresh=True).stdout)
    assert 80 < taken < 150


@NATIVE_CORE
@pytest.mark.parametrize("functions", [pytest.param(False, marks=THOROUGH), True])
def test_who_has_the_memory_is_known_in_tables_that_do_not_grow(
    functions: bool,
) -> None:
    """They are bounded by calls and kinds."""
    model = new_model()
    optimizer = torch.optim.Adam(nn.Linear(4, 4).parameters())
    kept: list[torch.Tensor] = []

    def steps(count: int) -> Any:
        for _ in range(count):
            optimizer.zero_grad()
            out = model(torch.ones(300, requires_grad=True))
            out.sum().backward()
            optimizer.step()
            kept.append(out.detach())
        kept.clear()
        return ledger_of(prof).sizes

    with profile(memory="cpu", functions=functions) as prof:
        few = steps(100)
        assert steps(1000) == few
    cells, used, blocks, spare = few
    assert 0 < used < cells
    assert blocks > 0 < spare
