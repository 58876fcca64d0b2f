from __future__ import annotations

import pytest
import torch

from torchprof_hooks.capture.program_facts import leaves_tf32_unused


def test_a_process_that_does_not_use_cuda() -> None:
    was_initialized = torch.cuda.is_initialized()
    if not was_initialized:
        assert not leaves_tf32_unused()
    assert torch.cuda.is_initialized() == was_initialized


@pytest.mark.parametrize(
    ("capability", "precision", "is_unused"),
    [
        ((8, 0), "highest", True),
        ((9, 0), "highest", True),
        ((7, 5), "highest", False),
        ((8, 0), "high", False),
    ],
)
def test_devices(
    capability: tuple[int, int],
    precision: str,
    is_unused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        assert leaves_tf32_unused() == is_unused
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.gpu
def test_a_device_in_use() -> None:
    torch.ones(1, device="cuda")
    has_cores = torch.cuda.get_device_capability() >= (8, 0)
    assert torch.get_float32_matmul_precision() == "highest"
    assert leaves_tf32_unused() == (has_cores and torch.version.cuda is not None)
