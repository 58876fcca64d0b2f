"""The device as Python sees it, ``torch.device("planted")``, and a module on it."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import tempfile
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.backend_registration import rename_privateuse1_backend

from tests.fake_clock import MS, burn, fake_clock
from torchprof_hooks.kernel.native.compiler import compile_extension

NAME = "planted_device"
SOURCE = Path(__file__).with_name(f"{NAME}.cpp")
#: Numbers that only grow.
COUNTS = "waits", "records", "events", "queries", "asked_whether_captured"


def build() -> Path:
    """The library, built once for this torch and source: by one process, others wait.

    Raises:
        NotBuiltError: there is no compiler.
    """
    said = torch.__version__ + SOURCE.read_text(encoding="utf-8")
    key = hashlib.sha256(said.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir(), f"{NAME}-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{NAME}-{key}.so"
    with Path(folder, "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=folder) as own:
                compile_extension(SOURCE, Path(own, path.name))
                Path(own, path.name).replace(path)
    return path


class Device:
    """The device, which has no clock but its own, and is done when that has passed."""

    def __init__(self, library: Any) -> None:
        library.planted_number.restype = ctypes.POINTER(ctypes.c_int64)
        library.planted_work.argtypes = [ctypes.c_int64]
        self._library = library

    def work(self, milliseconds: float) -> None:
        """The current device works for so long."""
        self._library.planted_work(round(milliseconds * MS))

    def pass_time(self, milliseconds: float) -> None:
        """The host works, while the device does what it has."""
        self._number("now_ns")[0] += round(milliseconds * MS)
        burn(milliseconds)

    def put(self, **numbers: int) -> None:
        """Change them: "captures", "fails" and "is_silent" (see planted_device.cpp)."""
        for name, value in numbers.items():
            self._number(name)[0] = value

    def state(self) -> dict[str, int]:
        """How often what has happened."""
        return {name: self._number(name)[0] for name in COUNTS}

    def is_initialized(self) -> bool:
        return bool(self._number("is_in_use")[0])

    def is_capturing(self) -> bool:
        self._number("asked_whether_captured")[0] += 1
        return bool(self._number("captures")[0])

    def _number(self, name: str) -> Any:
        return self._library.planted_number(name.encode())


def load(path: Path) -> Device:
    """Load the library, and register its device with torch."""
    rename_privateuse1_backend("planted")
    device = Device(ctypes.PyDLL(str(path)))
    torch._register_device_module(
        "planted",
        SimpleNamespace(
            is_initialized=device.is_initialized,
            is_current_stream_capturing=device.is_capturing,
            is_available=lambda: True,
            device_count=lambda: 2,
            get_amp_supported_dtype=lambda: [torch.bfloat16],
        ),
    )
    return device


def run(module: str, test: str) -> None:
    """Run a test in this process, by a clock that only planted work moves."""
    device = load(build())
    with pytest.MonkeyPatch.context() as monkeypatch, fake_clock(monkeypatch):
        getattr(import_module(module), test)(device)


class Work(nn.Module):
    """Queues work on the device in forward and backward: milliseconds."""

    def __init__(self, device: Device, forward: float, backward: float = 0) -> None:
        super().__init__()
        self.device, self.times = device, (forward, backward)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Queued.apply(x, self)
        return result


class _Queued(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, work: Work) -> torch.Tensor:
        ctx.work = work
        work.device.work(work.times[0])
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        ctx.work.device.work(ctx.work.times[1])
        return grad, None
