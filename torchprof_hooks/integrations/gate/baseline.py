"""What a step took on which machine, and the file that remembers it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import __version__ as torch_version

from torchprof_hooks.profiles.files.codec import checked_object, content_of, read_json
from torchprof_hooks.profiles.files.fields import Count
from torchprof_hooks.profiles.files.schema import Schema
from torchprof_hooks.profiles.files.writing import replaced_file

#: The row of a step's own time, outside of modules.
STEP: Final = "(step)"

_HEADER: Final = {"format": "torchprof_hooks baseline", "version": 1}


class Machine(NamedTuple):
    """What times depend on besides the code: only runs on equal machines are compared.

    processor: its name, as the system tells it.
    cores: how many cores the process may use.
    threads: how many threads torch uses within one operation.
    device: whose times are compared: "cpu", or the name of an accelerator.
    torch, python: versions.
    core: the core of the profiler, "native" or "python".
    is_traced: whether a debugger, or a tool for coverage, follows each line.
    """

    processor: str
    cores: Count
    threads: Count
    device: str
    torch: str
    python: str
    core: str
    is_traced: bool

    def short_name(self) -> str:
        """A short hash that stands for the machine in the names of files."""
        return hashlib.sha256(repr(tuple(self)).encode()).hexdigest()[:8]


class Low(NamedTuple):
    """The shortest time that a row of the step took itself, without inner calls.

    phases: nanoseconds by phase.
    """

    class_name: str
    phases: Mapping[str, Count]

    @property
    def own_ns(self) -> int:
        """Nanoseconds in all phases."""
        return sum(self.phases.values())


class Run(NamedTuple):
    """The shortest times that one process has measured, of its steps and of the
    reference work in between, which is the same on all machines.

    arithmetic_ns, memory_ns: of the reference work. In relation to these, the time of a
        step changes less from one day to the next.
    rows: modules of the step, and what else has a row (optimizers), by their names.
    """

    arithmetic_ns: Count
    memory_ns: Count
    rows: Mapping[str, Low]


class Baseline(NamedTuple):
    """What some processes have measured, on one machine."""

    machine: Machine
    runs: tuple[Run, ...]

    def broken_promise(self) -> str:
        """What is wrong with the values taken together, "" if nothing."""
        if not self.runs:
            return "has no runs"
        are_all = all(run.arithmetic_ns and run.memory_ns for run in self.runs)
        return "" if are_all else "has a reference of 0"


def save(value: Baseline | Run, path: Path) -> None:
    """Write `value` to a file, whole or not at all, and make missing folders.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    content = Schema({}).of(type(value)).encode(value)
    with replaced_file(path) as file:
        file.write(json.dumps({**_HEADER, **content}, indent=1) + "\n")


def load(kind: Any, path: Path) -> Any:
    """Read what `save` wrote.

    kind: `Baseline` or `Run`.

    Raises:
        ProfileFileError: the file is something else, damaged, or of another version.
        OSError: the file cannot be read.
    """
    read = read_json(path)
    with content_of(path):
        content = {**checked_object(read)}
        if content.pop("format", None) != _HEADER["format"]:
            raise ValueError("is not a baseline of torchprof_hooks")
        version, wanted = content.pop("version", None), _HEADER["version"]
        if version != wanted:
            raise ValueError(
                f"has version {version!r}; this release reads version {wanted}"
            )
        return Schema({}).of(kind).decode(content)


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
