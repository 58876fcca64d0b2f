"""Runs the parts of `gpu_check.py`, each in a process of its own, with a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final, Literal, NamedTuple

ROOT: Final = Path(__file__).parents[1]
#: Seconds that a part gets to save what it has, once it is interrupted.
GRACE_S: Final = 8.0

Status = Literal["done", "failed", "stopped", "left out"]


class Part(NamedTuple):
    """One of the parts.

    arguments: those of Python.
    limit_s: seconds that it may take.
    log: a file for what it prints; None: it is shown.
    """

    name: str
    arguments: Sequence[str]
    limit_s: float
    log: Path | None = None


class Outcome(NamedTuple):
    """What came of a part.

    status: "stopped" by its limit, "left out" for lack of time, ...
    """

    status: Status
    seconds: float = 0.0


class Budget:
    """The time of all parts together."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end_s = monotonic() + seconds

    @property
    def left_s(self) -> float:
        return self._end_s - monotonic()

    def run(self, part: Part, environment: Mapping[str, str]) -> Outcome:
        """Run one part, in what is left; say so."""
        limit_s = min(part.limit_s, self.left_s - GRACE_S)
        if limit_s <= 0:
            found = Outcome("left out")
        else:
            say(f"{part.name} (at most {limit_s:.0f} s) ...")
            found = run_limited(part, limit_s, environment)
        say(
            f"{part.name}: {found.status} after {found.seconds:.0f} s; "
            f"{max(self.left_s, 0):.0f} of {self.seconds:.0f} s are left"
        )
        return found


def say(text: str) -> None:
    print(f"\n# {text}", flush=True)


def run_limited(part: Part, limit_s: float, environment: Mapping[str, str]) -> Outcome:
    """Run Python in the root of the repository. At the limit, it is interrupted, and
    then killed, with all that it has started."""
    start_s = monotonic()
    command = [sys.executable, "-u", *part.arguments]
    output = None if part.log is None else part.log.open("w")
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        code = process.wait(limit_s)
        status: Status = "failed" if code else "done"
    except subprocess.TimeoutExpired:
        status = "stopped"
        end(process)
    finally:
        kill(process)
        if output is not None:
            output.close()
    return Outcome(status, monotonic() - start_s)


def end(process: subprocess.Popen[bytes]) -> None:
    """Let it save what it has."""
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)


def kill(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
