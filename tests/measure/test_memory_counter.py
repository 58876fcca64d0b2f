from __future__ import annotations

import ctypes
import mmap
import os
import platform
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.helpers import in_thread
from tests.programs import TORCH, python
from torchprof_hooks.measure import memory_counter as module
from torchprof_hooks.measure.allocator_counter import AllocatorCounter
from torchprof_hooks.measure.memory_counter import (
    CpuMemoryCounter,
    memory_counter,
)
from torchprof_hooks.profiles.errors import MemoryUnavailableError

MIB = 2**20

needs_glibc = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallinfo2"),
    reason="needs glibc 2.33 or newer",
)


class FakeMallInfo:
    """A `mallinfo2` that answers from a list of bytes in use, then the last again."""

    def __init__(self, *in_use: int, arena: int = 0, mapped: int = 0) -> None:
        self.in_use = list(in_use)
        self.arena = arena
        self.mapped = mapped

    def __call__(self) -> SimpleNamespace:
        in_use = self.in_use.pop(0) if len(self.in_use) > 1 else self.in_use[0]
        return SimpleNamespace(
            arena=self.arena, hblkhd=self.mapped, uordblks=in_use - self.mapped
        )


#: Bytes in use around the probe's block, as a malloc that works counts them.
GOOD_PROBE = (0, module._PROBE_BYTES, 0)


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
        return {
            "allocated_bytes": {
                "all": {"current": 30, "peak": 40, "allocated": 1000, "freed": 970},
                "large_pool": {"current": 0, "peak": 0, "allocated": 0, "freed": 0},
            },
            "reserved_bytes": {
                "all": {"current": 64, "peak": 128, "allocated": 256, "freed": 192}
            },
        }


# The C allocator


def changes(work: Callable[[], object]) -> tuple[int, int, int]:
    """How used, acquired and current bytes change while `work` runs. Its result lives
    until the second reading is done."""
    counter = CpuMemoryCounter()
    before = counter.read()
    result = work()
    after = counter.read()
    del result
    used, acquired, current, _ = (b - a for a, b in zip(before, after, strict=True))
    return used, acquired, current


@needs_glibc
@pytest.mark.parametrize("size", [1024 * MIB, 1500 * MIB])
def test_a_large_block_is_counted_up_to_its_last_page(size: int) -> None:
    used, acquired, current = changes(lambda: torch.empty(size, dtype=torch.uint8))

    # Blocks that do not fit into what the heap has left are mapped one by one: the
    # block, its header and alignment, rounded up to a page. Some hundred bytes more are
    # the tensor itself. Nobody writes to it, so that no memory is really taken.
    assert size <= acquired <= size + 2 * mmap.PAGESIZE
    assert size <= used <= size + 3 * mmap.PAGESIZE
    assert current == used


@needs_glibc
def test_small_blocks_are_counted() -> None:
    used, _, _ = changes(lambda: [torch.empty(1000) for _ in range(1000)])

    # 4000 bytes each; besides, header, alignment and the tensor: below 1000 bytes.
    assert 4_000_000 <= used <= 5_000_000


@needs_glibc
def test_used_bytes_sink_when_memory_is_freed() -> None:
    block = [torch.empty(1024 * MIB, dtype=torch.uint8)]

    used, acquired, current = changes(block.clear)

    assert CpuMemoryCounter.is_net
    assert -1024 * MIB - 2 * mmap.PAGESIZE <= acquired <= -1024 * MIB
    assert -1024 * MIB - 3 * mmap.PAGESIZE <= used <= -1024 * MIB
    assert current == used


@needs_glibc
def test_blocks_of_other_threads_are_counted() -> None:
    # Small enough to lie in the thread's own heap.
    used, _, _ = changes(
        lambda: in_thread(lambda: [torch.empty(1000) for _ in range(1000)])
    )

    assert 4_000_000 <= used <= 5_000_000


@needs_glibc
def test_the_peak_is_the_current_use() -> None:
    used, acquired, current, peak = CpuMemoryCounter().read()

    assert 0 < used == current == peak <= acquired


def test_heaps_and_mapped_blocks_are_added() -> None:
    mallinfo = FakeMallInfo(*GOOD_PROBE, 70, arena=90, mapped=50)

    counter = CpuMemoryCounter(mallinfo)

    # In use 20 in heaps and 50 mapped; taken 90 for heaps and 50 mapped.
    assert counter.read() == (70, 140, 70, 70)
    assert counter.name == "cpu"


@needs_glibc
@pytest.mark.parametrize("mode", ["meta device", "fake tensors"])
def test_the_probe_allocates_for_real_whatever_mode_is_active(mode: str) -> None:
    with torch.device("meta") if mode == "meta device" else FakeTensorMode():
        counter = CpuMemoryCounter()

    assert counter.read()[0] > 0


@needs_glibc
def test_the_probe_leaves_the_random_states_and_memory_as_they_were() -> None:
    counter = CpuMemoryCounter()
    states = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())
    used = counter.read()[0]

    CpuMemoryCounter()

    assert abs(counter.read()[0] - used) < MIB
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), repr(np.random.get_state())) == states[1:]


def test_the_probe_tolerates_noise_of_other_threads() -> None:
    block = module._PROBE_BYTES
    # Another thread allocates as much in between, frees as much, and then is quiet.
    noise = (0, 2 * block, block, block, block, 0)

    counter = CpuMemoryCounter(FakeMallInfo(*noise, *GOOD_PROBE, 7))

    assert counter.read()[0] == 7


@pytest.mark.parametrize(
    "in_use",
    [
        (5 * MIB,),  # never moves
        (0, module._PROBE_BYTES, module._PROBE_BYTES) * 50,  # does not sink
        (module._PROBE_BYTES, module._PROBE_BYTES, 0) * 50,  # does not rise
        tuple(range(0, 10**10, module._PROBE_BYTES)),  # gross
    ],
)
def test_a_counter_that_does_not_follow_is_refused(
    in_use: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "libother.so")

    with pytest.raises(
        MemoryUnavailableError,
        match=r"does not see what torch allocates.* another malloc .*'libother\.so'.*"
        "Run the program without it",
    ):
        CpuMemoryCounter(FakeMallInfo(*in_use))


@pytest.mark.parametrize(
    ("error", "version", "here"),
    [
        (AttributeError("undefined symbol"), "glibc 2.31", "glibc 2.31"),
        (AttributeError("dlsym"), ValueError("musl"), "TempleOS without glibc"),
        (TypeError("a name is needed"), AttributeError(), "TempleOS without glibc"),
        (OSError("no dlopen"), None, "TempleOS without glibc"),
    ],
)
def test_without_mallinfo2_the_error_says_what_is_there(
    error: Exception,
    version: str | Exception | None,
    here: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(_: object) -> None:
        raise error

    def confstr(_: str) -> str | None:
        if isinstance(version, Exception):
            raise version
        return version

    monkeypatch.setattr(ctypes, "PyDLL", load)
    monkeypatch.setattr(os, "confstr", confstr, raising=False)
    monkeypatch.setattr(platform, "system", lambda: "TempleOS")

    with pytest.raises(
        MemoryUnavailableError,
        match=f"mallinfo2 is missing.* since version 2.33, and this is {here}. Run on",
    ) as caught:
        CpuMemoryCounter()

    assert caught.value.__cause__ is error


#: Serves what is aligned, as torch's blocks are, from memory of its own.
OTHER_MALLOC = """
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
extern void __libc_free(void *);
extern void *__libc_memalign(size_t, size_t);
static char *pool, *next;
static const size_t pool_bytes = (size_t)64 << 30;
int posix_memalign(void **block, size_t alignment, size_t bytes) {
    if (!pool)
        next = pool = mmap(0, pool_bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pool == MAP_FAILED) return 12;
    next = (char *)(((uintptr_t)next + alignment - 1) & -alignment);
    *block = next;
    next += bytes;
    return 0;
}
void free(void *block) {
    if ((char *)block < pool || (char *)block >= pool + pool_bytes)
        __libc_free(block);
}
"""

#: Prints whether blocks of a size that glibc maps before are mapped after a probe.
THRESHOLD = """
import torch
from torchprof_hooks.measure.memory_counter import _load_mallinfo2, CpuMemoryCounter
mallinfo2, kept = _load_mallinfo2(), []
def is_mapped(size):
    before = mallinfo2().hblks
    kept.append(torch.UntypedStorage(size))
    return mallinfo2().hblks > before
size = next(2**n for n in range(12, 26) if is_mapped(2**n))
CpuMemoryCounter()
print(size < 2**24, is_mapped(size))
"""

USE = """
from torchprof_hooks.measure.memory_counter import CpuMemoryCounter
try:
    print(CpuMemoryCounter().name)
except RuntimeError as error:
    print(error)
"""


def run(script: str, **env: str) -> str:
    """What a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **env},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout).strip()


@pytest.mark.slow
@needs_glibc
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_another_malloc_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "other.c").write_text(OTHER_MALLOC)
    shim = str(tmp_path / "other.so")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", shim, str(tmp_path / "other.c")],
        check=True,
    )

    assert python("-c", USE, loaded=TORCH).stdout == "cpu\n"
    assert f"another malloc is in use (LD_PRELOAD is '{shim}')" in run(
        USE, LD_PRELOAD=shim
    )


@pytest.mark.slow
@needs_glibc
def test_the_probe_does_not_move_the_threshold_of_malloc() -> None:
    assert run(THRESHOLD) == "True True"


# The caching allocator


def test_cuda_counters() -> None:
    cuda = FakeCuda()
    counter = AllocatorCounter(1, cuda)

    assert counter.read() == (1000, 256, 30, 40)
    assert cuda.asked == [1]
    assert counter.name == "cuda:1"
    assert not counter.is_net


def test_cuda_is_not_initialised() -> None:
    cuda = FakeCuda()
    cuda.initialized = False
    counters = [AllocatorCounter(1, cuda), AllocatorCounter(None, cuda)]

    assert [counter.read() for counter in counters] == [(0, 0, 0, 0)] * 2
    assert [counter.name for counter in counters] == ["cuda:1", "cuda"]
    cuda.initialized = True
    assert [counter.read()[0] for counter in counters] == [1000] * 2


def test_without_an_index_the_device_at_the_first_reading_is_kept() -> None:
    cuda = FakeCuda(current=1)
    counter = AllocatorCounter(None, cuda)

    counter.read()
    cuda.current = 0
    counter.read()

    assert cuda.asked == [1, 1]
    assert counter.name == "cuda:1"


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "pluggable"])
def test_an_allocator_that_does_not_count_is_refused(backend: str) -> None:
    with pytest.raises(
        MemoryUnavailableError, match=f"'{backend}' does not count.*=backend:native"
    ):
        AllocatorCounter(0, FakeCuda(backend))


def test_a_device_that_is_not_there_is_refused() -> None:
    AllocatorCounter(1, FakeCuda())

    with pytest.raises(ValueError, match="there is no cuda:2: use a smaller number"):
        AllocatorCounter(2, FakeCuda())


@pytest.mark.gpu
def test_a_real_device_is_exact_to_512_bytes() -> None:
    torch.empty(1, device="cuda")
    counter = memory_counter()
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
    # Freed: only what is in use sinks.
    assert after == (during[0], during[1], current, during[3])


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


@needs_glibc
@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu"), None])
def test_the_cpu(device: str | torch.device | None, cuda: FakeCuda) -> None:
    cuda.initialized = False

    assert isinstance(memory_counter(device), CpuMemoryCounter)


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
    counter = memory_counter(device)

    assert counter.read()[0] == 1000
    assert counter.name == name


def test_asking_for_cuda_does_not_initialise_it(cuda: FakeCuda) -> None:
    cuda.initialized = False  # and then the fake refuses whatever would

    assert memory_counter("cuda").read() == (0, 0, 0, 0)
    assert memory_counter("cuda:1").read() == (0, 0, 0, 0)


@pytest.mark.parametrize("device", ["mps", "meta", "xpu:1", torch.device("mps")])
def test_other_devices_are_refused(device: str | torch.device) -> None:
    with pytest.raises(
        ValueError,
        match=r"device must be 'cpu', 'cuda' or 'cuda:N', not .*: of that, ",
    ):
        memory_counter(device)


@pytest.mark.parametrize("device", ["", "gpu", "cuda:x"])
def test_what_is_not_a_device_is_refused(device: str) -> None:
    with pytest.raises(
        ValueError, match=f"device must be 'cpu', 'cuda' or 'cuda:N', not '{device}'"
    ):
        memory_counter(device)


def test_cuda_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: None)

    with pytest.raises(
        MemoryUnavailableError, match=r"of cuda:1 .* built without CUDA\. Measure"
    ):
        memory_counter("cuda:1")
