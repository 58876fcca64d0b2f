"""Runs whole programs, each in a process of its own."""

from __future__ import annotations

import atexit
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Final

from tests.thorough import IS_THOROUGH

#: The beginning of the tables of a report.
TITLE = "\nProgram profiling\n"
#: The first line of a report.
_BEGINNING: Final = re.compile(
    r"^torchprof_hooks: .*(?:\n[\d.]+(?:sec|ms|us))? wall\b", re.MULTILINE
)

#: What forks have (see `tests.warm_python`): no more than torch, where a test looks at
#: what is imported; otherwise what programs import that train or compile, and what we
#: import to make a report.
TORCH: Final = ("torch",)
TRAINING: Final = (
    *("torch._dynamo", "torch._functorch.aot_autograd"),
    *("torch.utils.checkpoint", "torch.utils.data", "tabulate"),
    "torchprof_hooks.documents.build.blocks",
    "torchprof_hooks.documents.report",
)
NOTHING = (
    "torchprof_hooks: no module was called (processes that a program starts are not "
    "measured)\n"
)
TRAIN = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("trained")
"""


#: For programs that are measured by a clock of their own.
OWN_CLOCK = f"""
import sys
sys.path.append({str(Path(__file__).parent / "programs" / "scripts")!r})
import owned_clock
from owned_clock import busy
owned_clock.reading_ns = 100  # so that everything takes some time
"""

_TIMEOUT_S: Final = 600  # of a busy machine


class _WarmPython:
    """A Python that forks for each program (see `tests.warm_python`)."""

    def __init__(self, loaded: tuple[str, ...]) -> None:
        with tempfile.TemporaryDirectory() as place:
            path = str(Path(place) / "socket")
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path)
                listener.listen()
                listener.settimeout(_TIMEOUT_S)
                self._process = self._started(path, loaded)
                self._control, _ = listener.accept()
        self._control.settimeout(_TIMEOUT_S)
        self._answers = self._control.makefile("r")
        self._lock = Lock()
        self._owner = os.getpid()
        atexit.register(self._end)

    def _started(
        self, path: str, loaded: tuple[str, ...]
    ) -> subprocess.Popen[bytes] | None:
        """It, if it is not a fork of one that has a part of this already."""
        if loaded != TORCH:
            has_more = (
                len(loaded) > len(TRAINING) and loaded[: len(TRAINING)] == TRAINING
            )
            base = _warm_python(TRAINING if has_more else TORCH)
            request = {"load": loaded, "socket": path}
            base._control.sendall(json.dumps(request).encode() + b"\n")
            return None
        server = str(Path(__file__).parent / "warm_python.py")
        environment = {**os.environ, "PYTHONPATH": "", "HF_HUB_OFFLINE": "1"}
        return subprocess.Popen(
            [sys.executable, server, path, *loaded],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
        )

    def run(
        self,
        arguments: tuple[str, ...],
        environment: Mapping[str, str],
        typed: str,
        folder: str,
    ) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as place, self._lock:
            streams = [Path(place) / name for name in ("in", "out", "err")]
            for stream, text in zip(streams, (typed, "", ""), strict=True):
                stream.write_text(text)
            request = {
                "arguments": arguments,
                "environment": dict(environment),
                "folder": folder,
                "streams": list(map(str, streams)),
            }
            self._control.sendall(json.dumps(request).encode() + b"\n")
            code = int(self._answers.readline())
            out, err = (stream.read_text() for stream in streams[1:])
        return subprocess.CompletedProcess(arguments, code, out, err)

    def _end(self) -> None:
        if os.getpid() == self._owner:
            self._answers.close()
            self._control.close()
            if self._process:
                self._process.wait(_TIMEOUT_S)


_warm_python = cache(_WarmPython)


def python(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    typed: str = "",
    folder: str | Path = ".",
    fresh: bool = False,
    loaded: tuple[str, ...] = TRAINING,
) -> subprocess.CompletedProcess[str]:
    """What comes of Python with these arguments.

    fresh: in an interpreter of its own, to see what Python itself imports and says.
        Otherwise in a fork of one that has torch: that saves seconds.
    loaded: what the fork is to have; the first time, that is imported.
    """
    environment = os.environ if environment is None else environment
    folder = str(Path(folder).absolute())
    if not (fresh or IS_THOROUGH or _needs_its_own(arguments, environment)):
        return _warm_python(loaded).run(arguments, environment, typed, folder)
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        input=typed,
        cwd=folder,
        timeout=_TIMEOUT_S,
    )


def _needs_its_own(arguments: tuple[str, ...], environment: Mapping[str, str]) -> bool:
    """Whether Python has to know of some of this before it starts."""
    while arguments[:1] == ("-W",) and arguments[1] in ("error", "ignore"):
        arguments = arguments[2:]
    is_option = arguments[0].startswith("-") and arguments[0] not in ("-m", "-c", "-")
    differ = {
        name
        for name, _ in os.environ.items() ^ dict(environment).items()
        if name.startswith(("PYTHON", "OMP_")) and name != "PYTHONPATH"
    }
    return is_option or bool(differ) or not hasattr(os, "fork")


def reports_in(text: str) -> int:
    """How many reports there are in what a program has printed."""
    return len(_BEGINNING.findall(text))


class Run:
    """What came of a program: exit code, outputs, and the report among them."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr
        self.reports = reports_in(done.stderr) + reports_in(done.stdout)
        self.before_report = _BEGINNING.split(done.stderr)[0]


def plain(
    *arguments: str,
    flags: str = "",
    typed: str = "typed in",
    fresh: bool = False,
    loaded: tuple[str, ...] = TRAINING,
    **options: str,
) -> Run:
    """Python with these arguments, and nothing of ours. See `python` for the others."""
    environment = {**os.environ, "TORCHPROF_HOOKS_FLAGS": flags, **options}
    if not flags:
        del environment["TORCHPROF_HOOKS_FLAGS"]
    done = python(
        *arguments, environment=environment, typed=typed, fresh=fresh, loaded=loaded
    )
    return Run(done)


def profiled(
    *arguments: str,
    flags: str = "",
    typed: str = "typed in",
    fresh: bool = False,
    loaded: tuple[str, ...] = TRAINING,
    **options: str,
) -> Run:
    """The same by us."""
    command = ("-m", "torchprof_hooks", *arguments)
    return plain(
        *command, flags=flags, typed=typed, fresh=fresh, loaded=loaded, **options
    )


def written(directory: Path, text: str) -> str:
    path = directory / "program.py"
    path.write_text(text)
    return str(path)
