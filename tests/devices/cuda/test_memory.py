"""Who holds memory, next to what torch's own allocator counts, however it is set."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.devices.cuda import planted
from tests.running import python
from torchprof_hooks import Profile, profile, region
from torchprof_hooks.instruments.memory.meter import MemoryMeter
from torchprof_hooks.measure.memory_counter import memory_counter
from torchprof_hooks.profiles.memory import MemorySummary

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


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_again_in_the_thread_of_the_device(reentrant: bool) -> None:
    model, x = Net().to("cuda"), torch.zeros(ROWS, WIDTH, device="cuda")
    x.requires_grad_()
    inner = nn.Sequential(model.a, model.relu, model.b, nn.Tanh())

    def step() -> None:
        checkpoint(inner, x, use_reentrant=reentrant).sum().backward()

    step()
    torch.cuda.reset_peak_memory_stats()
    with profile(memory=True) as prof:
        step()
    memory = memory_of(prof.profile)
    assert memory.peak_bytes == torch.cuda.max_memory_allocated()
    kept = {
        (one.owner, one.phase) for one in memory.at_peak if one.kind == "activation"
    }
    again = {("Sequential.1", "recompute"), ("Sequential.3", "recompute")}
    # The other kind stops before the last one.
    assert kept == (again if reentrant else again - {("Sequential.3", "recompute")})


def test_torchs_profiler_is_told_what_it_was() -> None:
    training = Training()

    def told() -> list[tuple[int, int]]:
        with torch.profiler.profile(profile_memory=True) as traced:
            training.step()
        kineto: Any = traced.profiler
        return [
            (event.nbytes(), event.device_index())
            for event in kineto.kineto_results.events()
            if event.name() == "[memory]" and event.device_type().name == "CUDA"
        ]

    training.step()
    alone = told()
    with profile(memory=True) as prof:
        beside = told()
    assert len(alone) > 10
    assert alone == beside
    memory_of(prof.profile)


#: `c10::reportMemoryUsageToProfiler` and `c10::reportOutOfMemoryToProfiler`.
_NAMES = (
    "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE",
    "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE",
)
_WORD = 8


def mappings(library: str) -> list[str]:
    """What is mapped of it, and which of that may be written."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if line.endswith(f"/{library}")]


def report_calls(library: str) -> dict[int, int]:
    """The functions that it calls, by the place of their address."""
    c10 = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    functions: list[Any] = [getattr(c10, name) for name in _NAMES]
    theirs = {ctypes.cast(each, ctypes.c_void_p).value for each in functions}
    found: dict[int, int] = {}
    for line in mappings(library):
        span, access, *_ = line.split()
        if access.startswith("r-x"):
            continue
        begin, end = (int(address, 16) for address in span.split("-"))
        words = (ctypes.c_uint64 * ((end - begin) // _WORD)).from_address(begin)
        found |= {
            begin + n * _WORD: word for n, word in enumerate(words) if word in theirs
        }
    return found


def are_redirected(calls: dict[int, int]) -> bool:
    """Whether all these calls go elsewhere now."""
    return all(
        ctypes.c_uint64.from_address(place).value != function
        for place, function in calls.items()
    )


def in_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_blocks_in_blocks() -> None:
    """What the allocator's library calls is ours in them, and what it was afterwards,
    with the same parts of it protected."""
    kept = [torch.zeros(1, device="cuda")]
    library = "libc10_cuda.so"
    mapped, calls = mappings(library), report_calls(library)
    found: list[Profile] = []

    def take(size: int) -> None:
        kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))

    def elsewhere() -> None:
        with profile(memory=True) as there:
            take(1024)
        found.append(there.profile)

    with profile(memory=True) as outer:
        take(2048)
        with profile(memory=True) as inner:
            take(4096)
        assert are_redirected(calls)
        in_thread(elsewhere)
        take(512)
    assert len(calls) == 2  # blocks, and that there is no memory
    assert report_calls(library) == calls
    assert mappings(library) == mapped
    found += [inner.profile, outer.profile]
    assert [memory_of(each).bytes_by_kind() for each in found] == [
        {"temporary": 1024, "other": 2048 + 4096 + 512},
        {"temporary": 4096, "other": 2048 + 512},
        {"temporary": 2048 + 4096 + 512, "other": 1024 + 512},
    ]


@pytest.mark.parametrize(
    ("device", "name"),
    [
        (None, "cuda:1"),
        ("cuda:0", "cuda:0"),
        ("cuda", "cuda:1"),
        (torch.device("cuda", 0), "cuda:0"),
        (torch.device("cuda"), "cuda:1"),
    ],
)
def test_which_device_is_measured(device: Any, name: str) -> None:
    """If it has no index, the current one when it is first read; it is not put into use
    for that."""
    if device is None:
        torch.zeros(1, device="cuda:1")
        torch.cuda.set_device(1)
    counter = memory_counter(device)
    assert counter is not None
    if device is not None:
        assert counter.read() == (0, 0, 0, 0)
        assert not torch.cuda.is_initialized()
    torch.cuda.set_device(1)
    before = [allocated(n) for n in range(2)]
    kept = [torch.zeros(2000 * (n + 1), device=f"cuda:{n}") for n in range(2)]
    used = [allocated(n) for n in range(2)]
    assert [after - was for after, was in zip(used, before, strict=True)] == [
        8192,
        16_384,
    ]
    for current in (1, 0):
        torch.cuda.set_device(current)
        assert counter.read()[0] == used[int(name[-1])]
    assert MemoryMeter(counter).name == name
    del kept


def allocated(index: int) -> int:
    used: int = torch.cuda.memory_stats(index)["allocated_bytes.all.allocated"]
    return used


def test_a_device_that_is_not_there_is_refused() -> None:
    torch.zeros(1, device="cuda")
    with pytest.raises(ValueError, match="there is no cuda:2: use a smaller number"):
        profile(memory="cuda:2")


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
