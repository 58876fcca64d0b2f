"""The planted device as Python sees it: ``torch.device("planted")``.

A process that has loaded it has it for good, so tests run in a process of their own.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils.backend_registration import rename_privateuse1_backend

from tests.fake_clock import MS, burn
from torchprof_hooks.kernel.native.compiler import compile_extension

NAME = "planted_device"
SOURCE = Path(__file__).with_name(f"{NAME}.cpp")
SOURCES = (SOURCE, *sorted(SOURCE.parent.glob("planted_*.h")))


def build() -> Path:
    """The extension, built once for this torch and source: by one process, others wait.

    Raises:
        NotBuiltError: there is no compiler.
    """
    said = (torch.__version__, *(path.read_text(encoding="utf-8") for path in SOURCES))
    key = hashlib.sha256("\0".join(said).encode()).hexdigest()[:16]
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


def load(path: Path) -> ModuleType:
    """Load the extension, and register its device with torch."""
    spec = spec_from_file_location(
        NAME, path, loader=ExtensionFileLoader(NAME, str(path))
    )
    assert spec is not None
    rename_privateuse1_backend("planted")
    found = module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(found)
    torch._register_device_module(
        "planted",
        SimpleNamespace(
            is_initialized=found.is_initialized,
            is_current_stream_capturing=found.is_capturing,
            is_available=lambda: True,
            device_count=lambda: 2,
            get_amp_supported_dtype=lambda: [torch.bfloat16],
        ),
    )
    return found


class Work(nn.Module):
    """Queues work on the device, and takes time of the host, in forward and backward;
    `waits` for the device in forward.

    Milliseconds: those of the device first.

    kernels: the names of what it queues.
    """

    def __init__(
        self,
        device: Any,
        forward: tuple[float, float] = (4.0, 0.0),
        backward: tuple[float, float] = (6.0, 0.0),
        *,
        waits: bool = False,
        kernels: tuple[str, str] = ("planted_kernel", "planted_kernel"),
    ) -> None:
        super().__init__()
        self.device = device
        self.times = forward, backward
        self.waits = waits
        self.kernels = kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Queued.apply(x, self)
        if self.waits:
            self.wait()
        return result

    def work(self, place: int) -> None:
        """Do that of forward or backward."""
        device_ms, host_ms = self.times[place]
        self.device.add_work((round(device_ms * MS), self.kernels[place]))
        pass_time(self.device, host_ms)

    def wait(self) -> None:
        """Until the device is done, which is time of the host."""
        began_ns = self.device.state()["now_ns"]
        torch.accelerator.current_stream().synchronize()
        burn((self.device.state()["now_ns"] - began_ns) / MS)


def pass_time(device: Any, milliseconds: float) -> None:
    """The host works, while the device does what it has."""
    device.pass_time(round(milliseconds * MS))
    burn(milliseconds)


class _Queued(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, work: Work) -> torch.Tensor:
        ctx.work = work
        work.work(0)
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        ctx.work.work(1)
        return grad, None
