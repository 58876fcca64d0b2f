"""On which machine a step is measured."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path

import torch
from torch import __version__ as torch_version

from torchprof_hooks.integrations.gate.baseline import Machine


def this_machine(device: str, core: str) -> Machine:
    """This machine as it is now: the test may have set torch's threads."""
    return Machine(
        processor=_processor(),
        cores=_cores(),
        threads=torch.get_num_threads(),
        device=_device_name(device),
        torch=torch_version,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        core=core,
        is_traced=_is_traced(),
    )


def short_name(machine: Machine) -> str:
    """A short hash that stands for a machine in the names of files."""
    return hashlib.sha256(repr(tuple(machine)).encode()).hexdigest()[:8]


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    return device


def _is_traced() -> bool:
    """Whether a tool follows each line, since Python 3.12 maybe by `sys.monitoring`."""
    monitoring = getattr(sys, "monitoring", None)
    tools = (
        [] if monitoring is None else [monitoring.get_tool(each) for each in range(6)]
    )
    return sys.gettrace() is not None or any(tool is not None for tool in tools)
