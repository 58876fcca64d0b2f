"""What every test has to leave behind: nothing."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as optim_optimizer
from torch.utils.data import DataLoader, dataloader

from tests.fake_clock import FakeClock, fake_clock

#: No test may depend on how busy the machine is.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def _registered() -> dict[str, object]:
    """Everything of torch and Python that this package may touch while it is active."""
    return {
        "forward pre-hooks": dict(nn_module._global_forward_pre_hooks),
        "forward hooks": dict(nn_module._global_forward_hooks),
        "always called": dict(nn_module._global_forward_hooks_always_called),
        "optimizer pre-hooks": dict(optim_optimizer._global_optimizer_pre_hooks),
        "optimizer post-hooks": dict(optim_optimizer._global_optimizer_post_hooks),
        "backward entry": torch.autograd._engine_run_backward,  # type: ignore[attr-defined]
        "iterators over loaders": vars(DataLoader)["__iter__"],
        "batches": vars(dataloader._BaseDataLoaderIter)["__next__"],
        "function modes": torch._C._len_torch_function_stack(),
        "apply": vars(torch.autograd.function._SingleLevelFunction).get("apply"),
        "public apply": vars(torch.autograd.Function).get("apply"),
        "contexts": vars(torch.autograd.function.BackwardCFunction).get("__init__"),
        "attributes": vars(torch.autograd.function.FunctionMeta).get(
            "__getattribute__"
        ),
        "override check": torch.overrides.has_torch_function,
        "profile function": sys.getprofile(),
        "warning filters": [f for f in warnings.filters if "global hooks" in str(f[1])],
    }


@pytest.fixture(autouse=True)
def nothing_stays_registered() -> Iterator[None]:
    before = _registered()
    yield
    if _registered() != before:
        gc.collect()  # a hook that holds its own module is gone only then
    assert _registered() == before


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClock]:
    """The one clock that there is in this test; nothing but the test moves it."""
    with fake_clock(monkeypatch) as clock:
        yield clock


@pytest.fixture
def ticking(clock: FakeClock) -> FakeClock:
    """A `clock` that reading moves by a microsecond: no two moments are the same."""
    clock.cost_per_reading_ns = 1_000
    return clock


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


#: What torch warns of on CUDA, whatever the program does: that its debug mode is not
#: complete, that a thread of the engine was the first to multiply, and that gradients
#: of a model made on one stream are computed on another.
_CUDA_WARNINGS = (
    "Synchronization debug mode is a prototype",
    "Attempting to run cuBLAS",
    "The AccumulateGrad node's stream",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what needs a device that is not there."""
    for item in items:
        if item.get_closest_marker("gpu"):
            for warning in _CUDA_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{warning}"))
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
