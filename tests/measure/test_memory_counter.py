from __future__ import annotations

from typing import Any

import pytest
import torch

from torchprof_hooks.instruments.memory.meter import MemoryMeter, memory_meter
from torchprof_hooks.kernel.core import CORE
from torchprof_hooks.measure.memory_counter import AllocatorCounter, memory_counter
from torchprof_hooks.profiles.errors import MemoryUnavailableError


class FakeCuda:
    """What the counter uses of torch.cuda."""

    def __init__(self, backend: str = "native", current: int = 0) -> None:
        self.backend = backend
        self.current = current
        self.initialized = True
        self.asked: list[int] = []

    def get_allocator_backend(self) -> str:
        return self.backend

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        assert self.initialized, "counting devices may start the driver"
        return 2

    def current_device(self) -> int:
        assert self.initialized, "this initialises CUDA"
        return self.current

    def memory_stats_as_nested_dict(self, index: int) -> dict[str, Any]:
        assert self.initialized, "there are no counters yet"
        self.asked.append(index)
        allocated = {"current": 30, "peak": 40, "allocated": 1000, "freed": 970}
        reserved = {"current": 64, "peak": 128, "allocated": 256, "freed": 192}
        large = dict.fromkeys(allocated, 0)
        return {
            "allocated_bytes": {"all": allocated, "large_pool": large},
            "reserved_bytes": {"all": reserved},
        }


# The caching allocator


def test_cuda_is_asked_and_not_initialised() -> None:
    cuda = FakeCuda()
    cuda.initialized = False
    counters = [AllocatorCounter(1, cuda), AllocatorCounter(None, cuda)]
    assert [counter.read() for counter in counters] == [(0, 0, 0, 0)] * 2
    cuda.initialized = True
    assert [counter.read() for counter in counters] == [(1000, 256, 30, 40)] * 2
    assert cuda.asked == [1, 0]


def test_without_an_index_the_device_at_the_first_reading_is_kept() -> None:
    cuda = FakeCuda(current=1)
    counter = AllocatorCounter(None, cuda)
    counter.read()
    cuda.current = 0
    counter.read()
    assert cuda.asked == [1, 1]


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "pluggable"])
def test_an_allocator_that_does_not_count_is_refused(backend: str) -> None:
    match = f"'{backend}' does not count.*=backend:native"
    with pytest.raises(MemoryUnavailableError, match=match):
        AllocatorCounter(0, FakeCuda(backend))


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no cuda:2: use a smaller number"):
        AllocatorCounter(2, FakeCuda())


@pytest.mark.gpu
def test_a_real_device_is_exact_to_512_bytes() -> None:
    torch.empty(1, device="cuda")
    counter = memory_meter()
    used, acquired, current, peak = counter.read()

    # Up to 1 MiB blocks are always cut to a multiple of 512 bytes: 196 * 512 = 100352.
    block = torch.empty(100_001, dtype=torch.uint8, device="cuda")
    during = counter.read()
    del block
    after = counter.read()

    assert counter.name == f"cuda:{torch.cuda.current_device()}"
    assert during[0] - used == during[2] - current == 100_352
    assert during[1] >= acquired
    assert peak <= during[3] >= during[2]
    # Freed: what is in use sinks, and has not been more since the last reading.
    assert after == (during[0], during[1], current, current)


# The right one for a device


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A torch built for CUDA, with two devices, the second being the current one."""
    fake = FakeCuda(current=1)
    for name in dir(fake):
        if callable(getattr(fake, name)) and not name.startswith("_"):
            monkeypatch.setattr(torch.cuda, name, getattr(fake, name), raising=False)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    return fake


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu"), None])
def test_the_cpu(device: str | torch.device | None, cuda: FakeCuda) -> None:
    cuda.initialized = False
    assert memory_counter(device) is None
    if CORE.module is not None:
        assert memory_meter(device).counts_tensors
        return
    match = f"bytes on the CPU need the native core, which .*: {CORE.reason}"
    with pytest.raises(MemoryUnavailableError, match=match):
        memory_meter(device)


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
def test_cuda(device: str | torch.device | None, name: str, cuda: FakeCuda) -> None:
    cuda.initialized = device is None  # and then the fake refuses whatever would
    counter = memory_counter(device)
    assert counter is not None
    assert counter.read()[0] == (1000 if device is None else 0)
    cuda.initialized = True
    assert counter.read()[0] == 1000
    assert MemoryMeter(counter).name == name
