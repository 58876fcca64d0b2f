"""The allocator of CUDA, as far as a build for CUDA goes without a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.cores import NATIVE_CORE
from tests.devices.report_calls import are_redirected, report_calls
from torchprof_hooks import profile

pytestmark = [
    NATIVE_CORE,
    pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="not a CUDA build"),
]
LIBRARY = "libc10_cuda.so"


def test_its_reports_are_redirected_while_its_memory_is_measured() -> None:
    calls = report_calls(LIBRARY)
    was_in_use = torch.cuda.is_initialized()
    with profile(memory="cuda") as prof:
        are_ours = are_redirected(calls)
        nn.Linear(2, 2)(torch.ones(2))

    assert len(calls) == 2  # blocks, and that there is no memory
    assert are_ours
    assert report_calls(LIBRARY) == calls
    assert torch.cuda.is_initialized() == was_in_use
    assert not prof.profile.not_measured
