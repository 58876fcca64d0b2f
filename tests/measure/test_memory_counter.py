"""The counters of a device's allocator, and where they are not to be had."""

from __future__ import annotations

import pytest
import torch

from torchprof_hooks.instruments.memory.meter import memory_meter
from torchprof_hooks.kernel.core import CORE
from torchprof_hooks.measure.memory_counter import memory_counter
from torchprof_hooks.profiles.errors import MemoryUnavailableError


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


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu"), None])
def test_the_cpu(device: str | torch.device | None) -> None:
    if torch.cuda.is_initialized():
        pytest.skip("a device is in use")
    assert memory_counter(device) is None
    if CORE.module is not None:
        assert memory_meter(device).counts_tensors
        return
    match = f"bytes on the CPU need the native core, which .*: {CORE.reason}"
    with pytest.raises(MemoryUnavailableError, match=match):
        memory_meter(device)
