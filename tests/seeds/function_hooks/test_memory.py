"""The memory hook of functions on the CPU and on a device. For what it has in common
with that of modules, see tests/seeds/link_hooks/test_memory.py."""

from __future__ import annotations

import io

import pytest
import torch

from tests.cores import NATIVE_CORE
from tests.functions import Runs
from tests.seeds.link_hooks.fake_memory import INPUT, MIB, near
from torchprof_hooks.function_hooks import MemoryProfileHook


@NATIVE_CORE
def test_blocks_that_come_and_go_count_and_are_not_kept_alive() -> None:
    def come_and_go() -> None:
        for _ in range(5):
            torch.empty(40 * MIB, dtype=torch.uint8)

    report = io.StringIO()
    with MemoryProfileHook("cpu") as hook:
        Runs.apply(INPUT, come_and_go)

    assert hook.summary()["Runs"]["used_bytes"] == near(5 * 40 * MIB)
    assert hook.summary()["Runs"]["peak_bytes"] == near(40 * MIB)  # never two at once
    hook.print_report(file=report)
    assert report.getvalue().splitlines()[-1] == (
        "Memory of tensors on the CPU, by the thread that calls, to the byte: what was "
        "handed out; freed bytes count, too."
    )


@pytest.mark.gpu
def test_bytes_on_a_device_are_exact() -> None:
    # 100,001 bytes are rounded up to a multiple of 512: 196 * 512 = 100,352.
    tensor = torch.ones(100_001, dtype=torch.uint8, device="cuda")

    def come_and_go() -> None:
        tensor.bitwise_not()

    with MemoryProfileHook() as hook:
        kept = tensor + tensor
        Runs.apply(tensor, come_and_go)

    used = {name: sums["used_bytes"] for name, sums in hook.summary().items()}
    assert used["add"] == used["bitwise_not"] == used["clone"] == 100_352
    assert used["Runs"] == 2 * 100_352  # also that of the two which is free again
    assert hook.summary()["Runs"]["peak_bytes"] == 100_352
    assert hook.total_used_bytes() == 3 * 100_352
    assert kept.is_cuda
