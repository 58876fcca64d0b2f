from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pytest
import torch
from torch import Tensor
from torch.nn.modules import module as module_tables

from torchprof_hooks import ProfilerHook
from torchprof_hooks.capture.torch_names.profiler import is_profiler_active
from torchprof_hooks.tracing.recorded_step import MemoryStep

#: Bytes of what `train` makes at most: twice 1024 floats.
PEAK = 2 * 4096


@pytest.fixture(autouse=True)
def no_profiler_stays() -> Iterator[None]:
    yield
    assert not is_running()


def is_running() -> bool:
    """Whether anything of ours, or torch's profiler, is active."""
    tables = (
        module_tables._global_forward_hooks,
        module_tables._global_forward_pre_hooks,
    )
    return any(tables) or is_profiler_active()


def train() -> Tensor:
    return torch.zeros(1024).exp().sin()


def peak_of(memory: MemoryStep) -> int:
    replay = memory.replay()
    assert replay is not None, memory.reason
    (device,) = replay.devices
    return device.as_run_bytes


def test_a_step_is_recorded_and_replayed() -> None:
    memory = MemoryStep()
    assert memory.begin()
    assert is_running()
    train()
    memory.end(7)
    assert not is_running()
    train()  # no part of it
    assert peak_of(memory) == PEAK
    replay = memory.replay()
    assert replay is not None
    assert replay.step == 7
    assert [(row.operation, row.size_bytes) for row in replay.rows] == [
        ("aten::zeros", 4096),
        ("aten::exp", 4096),
        ("aten::sin", 4096),
    ]
    assert replay is memory.replay()
    assert memory.reason == ""


def test_nothing_was_recorded() -> None:
    memory = MemoryStep()
    assert memory.replay() is None
    assert memory.reason == "no step was traced"
    memory.end(1)
    memory.drop()
    assert memory.replay() is None


def test_a_step_that_fails_is_dropped() -> None:
    memory = MemoryStep()
    memory.begin()
    train()
    memory.drop()
    assert not is_running()
    assert memory.replay() is None
    assert memory.reason == "the traced step has not ended"
    memory.begin()
    train()
    memory.end(2)
    assert peak_of(memory) == PEAK


def test_the_last_step_counts_that_has_ended() -> None:
    memory = MemoryStep()
    for step, count in enumerate((1, 3), 1):
        memory.begin()
        kept = [torch.ones(256) for _ in range(count)]
        memory.end(step)
        del kept
    memory.begin()
    memory.begin()  # the one before did not end
    memory.drop()
    assert peak_of(memory) == 3 * 1024


def test_another_profiler_is_running() -> None:
    memory = MemoryStep()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
        assert not memory.begin()
        train()
        memory.end(1)
    assert memory.replay() is None
    assert memory.reason == "another profiler of torch was running"
    assert "aten::exp" in {event.key for event in p.key_averages()}
    assert memory.begin()
    memory.drop()


def test_another_profiler_begins_during_the_step() -> None:
    memory = MemoryStep()
    assert memory.begin()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
        train()
    memory.end(1)
    assert "aten::exp" in {event.key for event in p.key_averages()}
    assert memory.replay() is None
    assert memory.reason == "another profiler of torch began during the step"


def test_a_step_in_which_nothing_was_done() -> None:
    memory = MemoryStep()
    memory.begin()
    memory.end(1)
    assert memory.replay() is None
    assert memory.reason == "torch has recorded no operation"


# With ProfilerHook


def test_both_trace_a_step(tmp_path: Path) -> None:
    memory = MemoryStep()
    with ProfilerHook(1, output_dir=tmp_path, trace_first=True) as hook:
        torch.ones(100_000).cos()  # before the step of the other
        assert memory.begin()
        train()
        memory.end(1)
        torch.ones(100_000).cos()
        assert memory.replay() is None
        assert memory.reason == "the traced step has not ended"
        hook.step()
        assert peak_of(memory) == PEAK
    assert [path.name for path in hook.paths] == ["timeline-1.json"]


def test_the_hook_may_be_inside(tmp_path: Path) -> None:
    memory = MemoryStep()
    assert memory.begin()
    with ProfilerHook(1, output_dir=tmp_path, trace_first=True) as hook:
        train()
        hook.step()
    memory.end(1)
    assert peak_of(memory) == PEAK
    assert [path.name for path in hook.paths] == ["timeline-1.json"]


def test_a_hook_that_records_no_tensors_was_first(tmp_path: Path) -> None:
    memory = MemoryStep()
    hook = ProfilerHook(1, output_dir=tmp_path, trace_first=True, show_dataflow=False)
    with hook:
        assert memory.begin()
        train()
        memory.end(1)
        hook.step()
    assert memory.replay() is None
    assert memory.reason == (
        "a hook that records no tensors was tracing the step already"
    )


# Invisible


def test_the_step_is_the_same_to_the_last_bit() -> None:
    def noisy() -> Tensor:
        return torch.rand(64, requires_grad=True).exp().sum()

    torch.manual_seed(3)
    bare = noisy()
    torch.manual_seed(3)
    memory = MemoryStep()
    memory.begin()
    traced = noisy()
    memory.end(1)
    assert torch.equal(traced, bare)


class Interrupt(BaseException):
    pass


# Python lets none pass from callbacks of its garbage collector, such as hypothesis's.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_leave_nothing_running_after_a_drop() -> None:
    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    chance = random.Random(0)
    caught = 0
    try:
        for _ in range(40):
            memory = MemoryStep()
            try:
                # Again, if it came in one of these.
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0005, 0.02), 1)
                while True:
                    memory.begin()
                    train()
                    memory.end(1)
            except Interrupt:
                caught += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            memory.drop()
            assert not is_running()
        memory.begin()
        train()
        memory.end(2)
        assert peak_of(memory) == PEAK
    finally:
        signal.signal(signal.SIGALRM, before)
    assert caught == 40


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_of_a_traced_step_records_nothing_and_can_trace() -> None:
    memory = MemoryStep()
    memory.begin()
    child = os.fork()
    if child == 0:
        memory.end(1)
        is_empty = memory.replay() is None and not is_running()
        memory.begin()
        train()
        memory.end(2)
        os._exit(0 if is_empty and peak_of(memory) == PEAK else 1)
    train()
    memory.end(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert peak_of(memory) == PEAK
