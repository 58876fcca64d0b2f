"""What the tests on a CUDA device share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import nn

import torchprof_hooks
from torchprof_hooks import Profile, function_hooks, link_hooks
from torchprof_hooks.profiles.totals import Totals

DEVICE: Final = "cuda"

#: Half a second or less: cycles of the device's clock.
SLEEP_CYCLES: Final = 500_000_000

#: What can be around a loop, by name.
MEASURERS: Final[dict[str, Callable[[], AbstractContextManager[Any]]]] = {
    "profile": torchprof_hooks.profile,
    "functions": lambda: torchprof_hooks.profile(functions=True),
    "memory": lambda: torchprof_hooks.profile(memory=True),
    "all": lambda: torchprof_hooks.profile(functions=True, memory=True),
    "link TimerHook": lambda: link_hooks.TimerHook(backward=True),
    "link MemoryProfileHook": link_hooks.MemoryProfileHook,
    "function TimerHook": function_hooks.TimerHook,
    "function TimerHook by call": lambda: function_hooks.TimerHook(by="call"),
    "function MemoryProfileHook": function_hooks.MemoryProfileHook,
}


#: What steps compute in.
TYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class Training:
    """A small network, and steps of its training: in half precision, the loss is
    scaled."""

    def __init__(self, width: int = 64, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.dtype = dtype
        self.is_mixed = dtype != torch.float32
        self.scaler = torch.amp.GradScaler(DEVICE, enabled=self.is_mixed)
        self.model = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width)
        ).to(DEVICE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.x = torch.randn(32, width, device=DEVICE)

    def backward(self) -> torch.Tensor:
        with torch.autocast(DEVICE, self.dtype, enabled=self.is_mixed):
            loss: torch.Tensor = self.model(self.x).square().mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        return loss.detach()

    def step(self) -> torch.Tensor:
        loss = self.backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss

    def state(self) -> list[torch.Tensor]:
        """Parameters, gradients, and the state of the device's random numbers."""
        parameters = list(self.model.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        tensors = [*parameters, *gradients, torch.cuda.get_rng_state()]
        return [tensor.detach().clone() for tensor in tensors]


def assert_equal_bits(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert torch.equal(a, b)


def totals(profile: Profile, name: str, phase: Any = "forward") -> Totals:
    """What was booked on a row in one phase."""
    (row,) = (row for row in profile.rows() if row.name == name)
    return row.phases[phase]


def sleep() -> torch.cuda.Event:
    """Keep the device busy for a while. Returns an event that lies behind it."""
    torch.cuda._sleep(SLEEP_CYCLES)
    awake = torch.cuda.Event()
    awake.record()
    return awake


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Whatever waits for the device raises: torch's own operations by its debug mode,
    which does not look at explicit calls, and these because they are replaced."""
    torch.cuda.synchronize()
    with (
        patch.object(torch.cuda, "synchronize", _refuse),
        patch.object(torch.cuda.Event, "synchronize", _refuse),
        patch.object(torch.cuda.Stream, "synchronize", _refuse),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def _refuse(*args: object) -> None:
    raise AssertionError("this waits for the device")
