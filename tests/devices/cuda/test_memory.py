"""Who holds memory, next to what torch's own allocator counts, however it is set."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from tests.devices.cuda import planted
from tests.running import python
from torchprof_hooks import MemorySummary, Profile, profile, region

pytestmark = pytest.mark.gpu

#: Blocks are multiples of 512 bytes, which none of these tensors is.
WIDTH, ROWS = 300, 1500
WEIGHT = 4 * WIDTH**2
#: The setting, and what a block is then that is asked for as a weight, or a result.
SETTINGS = [
    ("", 360_448, 1_800_192),
    ("expandable_segments:True", 360_448, 1_800_192),
    ("roundup_power2_divisions:4", 393_216, 1_835_008),
]


class Net(nn.Module):
    """Its ReLU keeps its result for backward."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH, bias=False)
        self.relu = nn.ReLU()
        self.b = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.b(self.relu(self.a(x)))
        return found


class Training:
    """Steps of a model with Adam, all on one device."""

    def __init__(self) -> None:
        self.model = Net().to("cuda")
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.x = torch.zeros(ROWS, WIDTH, device="cuda")

    def step(self, rows: int = ROWS) -> None:
        self.optimizer.zero_grad()
        self.model(self.x[:rows]).sum().backward()
        self.optimizer.step()


def memory_of(found: Profile) -> MemorySummary:
    assert found.not_measured == ()
    assert found.memory is not None
    assert found.memory.peak_bytes == sum(one.bytes for one in found.memory.at_peak)
    return found.memory


def held(memory: MemorySummary, kind: str) -> dict[str, int]:
    return {one.owner: one.bytes for one in memory.at_peak if one.kind == kind}


def put(setting: str) -> None:
    """What PYTORCH_CUDA_ALLOC_CONF says to a program."""
    try:
        torch._C._accelerator_setAllocatorSettings(setting)
    except AttributeError:  # torch 2.8
        torch.cuda.memory._set_allocator_settings(setting)


@pytest.mark.parametrize("is_there_before", [False, True])
@pytest.mark.parametrize(("setting", "weight", "result"), SETTINGS)
def test_owners_add_up_to_the_peak(
    setting: str, weight: int, result: int, is_there_before: bool
) -> None:
    put(setting)
    Training().step()  # what libraries keep for their work is there
    training = Training()
    if is_there_before:
        training.step()
    torch.cuda.reset_peak_memory_stats()
    with profile(memory=True) as prof:
        for _ in range(3):
            training.step()
    memory = memory_of(prof.profile)
    is_expandable = {one["is_expandable"] for one in torch.cuda.memory_snapshot()}
    assert is_expandable == {"expandable" in setting}
    assert memory.source == "cuda:0"
    assert memory.peak_bytes == torch.cuda.max_memory_allocated()
    # What was there before has the bytes of its tensors.
    state = 2 * 2 * (WEIGHT if is_there_before else weight)
    assert held(memory, "parameter") == {"Net.a": WEIGHT, "Net.b": WEIGHT}
    assert held(memory, "optimizer state") == {"(optimizer) Adam": state}
    assert held(memory, "gradient") == {"Net.b": weight}
    assert held(memory, "activation")["Net.relu"] == result


@pytest.mark.parametrize("rows", [(10, ROWS), (ROWS, 10)])
def test_the_program_sets_peaks_back(rows: tuple[int, int]) -> None:
    training, peaks = Training(), []
    training.step()
    torch.cuda.reset_peak_memory_stats()
    with profile(memory=True) as prof:
        for count in rows:
            training.step(count)
            training.step(count)
            peaks.append(torch.cuda.max_memory_allocated())
            torch.cuda.reset_peak_memory_stats()

    assert peaks[0] != peaks[1]
    assert memory_of(prof.profile).peak_bytes == max(peaks)


@pytest.mark.parametrize("kind", ["pool", "graph"])
def test_blocks_of_a_pool(kind: str) -> None:
    training, graph = Training(), torch.cuda.CUDAGraph()
    training.step()
    x = torch.zeros(20 * ROWS, WIDTH, device="cuda")
    pool = torch.cuda.MemPool()
    pools: dict[str, AbstractContextManager[Any]] = {
        "pool": torch.cuda.use_mem_pool(pool),
        "graph": torch.cuda.graph(graph),
    }
    torch.cuda.reset_peak_memory_stats()
    with profile(memory=True) as prof:
        training.step()
        with pools[kind]:
            y = training.model(x)
        z = torch.zeros_like(x)
        del y, z
        training.step()
    memory = memory_of(prof.profile)
    assert memory.peak_bytes == torch.cuda.max_memory_allocated()
    block = -(-x.nbytes // 512) * 512
    assert held(memory, "temporary") == {
        "Net.relu": block,
        "Net.b": block,
        "(outside modules)": block,
    }
    ids = {one["segment_pool_id"] for one in torch.cuda.memory_snapshot()}
    assert len(ids) == 2


def test_out_of_memory() -> None:
    planted.put(total_bytes=1 << 30)
    training = Training()
    with profile(memory=True) as prof:
        training.step()
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 30, device="cuda")
        now = torch.cuda.memory_allocated()
        training.step()
    memory = memory_of(prof.profile)
    assert memory.peak_bytes == torch.cuda.max_memory_allocated()
    assert memory.failure is not None
    assert memory.failure.requested_bytes == 4 << 30
    assert memory.failure.held_bytes == now
    assert now == sum(one.bytes for one in memory.failure.held)


def test_two_devices() -> None:
    planted.put(devices=2)
    training = Training()
    with profile(memory=True) as prof:
        training.step()
        torch.zeros(10**8, device="cuda:1")
        training.step()
    memory = memory_of(prof.profile)
    assert memory.source == "cuda:0"
    assert memory.peak_bytes == torch.cuda.max_memory_allocated(0)


@pytest.mark.parametrize("is_inside", [False, True])
def test_the_device_is_in_use_later_than_measuring_begins(is_inside: bool) -> None:
    around = region("epoch") if is_inside else nullcontext()
    assert not torch.cuda.is_initialized()
    with profile(memory=True) as prof, around:
        training = Training()
        for _ in range(3):
            training.step()
    memory = memory_of(prof.profile)
    assert memory.source == "cuda:0"
    assert memory.peak_bytes == torch.cuda.max_memory_allocated()
    # What was open when the device was found is measured from there on.
    used = {
        (row.name.removeprefix("epoch."), phase): totals.memory.used_bytes
        for row in prof.profile.rows()
        for phase, totals in row.phases.items()
    }
    assert used["Net.relu", "forward"] == 3 * SETTINGS[0][2]
    assert min(used.values()) == 0


PROGRAM = """
import torch
from torchprof_hooks import profile

model = torch.nn.Linear(4, 4).to("cuda")
with profile(memory=True) as prof:
    model(torch.zeros(4, 4, device="cuda"))
print(prof.profile.report())
"""


def test_an_allocator_that_does_not_count_is_said() -> None:
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    done = python("-c", PROGRAM, environment=environment, fresh=True)
    said = " ".join(done.stdout.split())
    assert (
        "Memory: not measured: the memory of cuda devices cannot be measured: the "
        "allocator 'cudaMallocAsync' does not count the bytes that it hands out"
    ) in said, done.stderr
