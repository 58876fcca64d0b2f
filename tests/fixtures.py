"""What tests may ask for, and what every test has to leave behind: nothing."""

from __future__ import annotations

import gc
import re
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import distributed

from tests.fake_clock import FakeClock, fake_clock, leave_old_objects_alone
from tests.registered import registered
from tests.thorough import IS_THOROUGH
from torchprof_hooks import FunctionHook
from torchprof_hooks.kernel import ended_steps
from torchprof_hooks.kernel.reference import attribution

#: No test may depend on how busy the machine is.
settings.register_profile(
    "any machine",
    deadline=None,
    max_examples=100 if IS_THOROUGH else 30,  # others each time
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")


leave_old_objects_alone()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background so, and its children inherit it. Tests
    # interrupt themselves and others.
    signal.signal(signal.SIGINT, signal.default_int_handler)


if not torch.cuda.is_available():
    # Where torch is built for CUDA and there is no device, compiling has it believe in
    # one. A first backward pass after that starts a thread for it, and forks have none.
    torch.ones(1, requires_grad=True).backward()


@pytest.fixture(autouse=True)
def nothing_stays_registered() -> Iterator[None]:
    before = registered()
    yield
    if registered() != before:
        gc.collect()  # a hook that holds its own module is gone only then
    if torch._C._len_torch_function_stack():
        with FunctionHook():  # takes off the mode of a hook that was collected
            pass
    assert registered() == before


@pytest.fixture(autouse=True, scope="module")
def what_is_there_already_is_no_garbage() -> None:
    """Have Python look for garbage among what the tests of a module make, and not among
    all that there is of torch and of tests: that would take a tenth of a second each
    time. The same goes for us, where we look for profilers of torch."""
    gc.collect()
    gc.freeze()


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


@pytest.fixture
def no_mode_stays() -> Iterator[None]:
    """A mode that a test leaves on torch's stack is its failure, and no other's. The
    next hook takes off one that was closed while it handled a call."""
    yield
    with FunctionHook():
        pass
    left = torch._C._len_torch_function_stack()
    while torch._C._len_torch_function_stack():
        torch._C._pop_torch_function_stack()
    assert left == 0


@pytest.fixture
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few steps fill the table of nodes that are remembered."""
    monkeypatch.setattr(attribution, "NODES_KEPT", 2048)


@pytest.fixture
def no_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """None was made in this process, by other tests either: no training is to come."""
    monkeypatch.setattr(ended_steps, "any_optimizer_made", lambda: False)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of processes that has one."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """torch.compile, which has compiled nothing yet."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def seeded() -> None:
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # that takes milliseconds, to prepare for devices that are not there
        torch.default_generator.manual_seed(0)


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


#: Tests that start programs, compile, or run through every operator of torch: seconds
#: each, or hundreds of them.
_SLOW = (
    "tests/cost/test_bounds.py::test_memory_does_not_grow_if",
    "tests/documents/test_examples.py",
    "tests/invisibility/databases/",
    "tests/invisibility/models/",
    "tests/invisibility/test_compile",
    "tests/invisibility/test_exports.py",
    "tests/invisibility/test_function_compile.py",
    "tests/invisibility/test_tensor_classes.py",
    "tests/programs/",
    "tests/ranks/",
    "tests/seeds/session/test_profiler_hook.py",
    "tests/seeds/session/test_trace",
)


#: All that is marked as serial.
_ALONE = "tests/cost/test_real_time.py"


def with_addresses(ids: Iterable[str]) -> list[str]:
    """Those with an address of memory in them, which is another one in each process:
    pytest-xdist would not know them again."""
    return [name for name in ids if re.search(r"\bat 0x[0-9a-f]+", name)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what needs a device that is not there; see to it that what tests are
    called does not change; and have those that take long come first, so that no process
    is left with one of them when the others have nothing more to do."""
    unstable = with_addresses(item.nodeid for item in items)
    if unstable:
        raise pytest.UsageError(f"give these tests ids: {', '.join(unstable)}")
    for item in items:
        if item.get_closest_marker("serial") and not item.nodeid.startswith(_ALONE):
            raise pytest.UsageError(f"{item.nodeid} belongs in {_ALONE}")
        if item.nodeid.startswith(_SLOW):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("gpu"):
            for warning in _CUDA_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{warning}"))
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
