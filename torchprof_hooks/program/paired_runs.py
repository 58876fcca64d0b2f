"""Runs two programs in turns, each run in a process of its own."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, Final

from torchprof_hooks.documents.progress import with_progress
from torchprof_hooks.program.launch import interpreter_options

#: What ends us, if it comes: with it, the program that runs is ended first.
_ENDING: Final = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if hasattr(signal, name)
]
#: Seconds between looks whether such a signal came.
_LOOK_S: Final = 0.2
#: Seconds that a program gets to end by itself.
_PATIENCE_S: Final = 5.0
#: How many of the last lines of a program that failed are printed.
_LINES: Final = 20
#: The folders of both programs.
SIDES: Final = ("old", "new")


class RunFailedError(Exception):
    """A program failed. `printed` are the last lines of its output."""

    def __init__(self, message: str, printed: str = "") -> None:
        super().__init__(message)
        self.printed = printed


class StoppedError(Exception):
    """A signal came, and the program that ran has been ended."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


def program_of(written: str) -> list[str]:
    """A program with arguments, as it is written behind ``python``.

    Raises:
        ValueError: it is none.
    """
    try:
        words = shlex.split(written)
    except ValueError as error:
        raise ValueError(f"{written!r} is no command: {error}") from None
    if not words:
        raise ValueError("give a script, such as train.py, and arguments in quotes")
    if Path(words[0]).name.startswith("python"):
        raise ValueError(f"leave {words[0]} out: give the script, and its arguments")
    if words[0][0] != "-" and not Path(words[0]).is_file():
        raise ValueError(f"there is no file {words[0]}")
    return words


def run_in_turns(
    programs: Mapping[str, list[str]], runs: int, folder: Path, *, functions: bool
) -> None:
    """Run both programs in turns: old, new, new, old, and so on. Their profiles are
    written to ``old/1.json``, ``new/1.json`` and so on in the folder.

    In each pair, the other program begins, so that it does not matter if the machine
    becomes slower. Before, each runs once without being counted: the first run reads
    files that are later in memory.

    functions: whether functions are measured, too.

    Raises:
        RunFailedError: a program failed, or called no module.
        StoppedError: we were to end. No process is left.
    """
    for side in SIDES:
        (folder / side).mkdir(parents=True)
    turns = [
        (side, number)
        for number in range(runs + 1)
        for side in (SIDES if number % 2 else SIDES[::-1])
    ]
    began_s = monotonic()
    with _noticing() as came:
        for side, number in with_progress(turns, "running"):
            file = folder / side / f"{number or 'first'}.json"
            _run(side, programs[side], file, functions, came)
            if not number:
                file.unlink()
            if (side, number) == turns[1]:
                left_s = runs * (monotonic() - began_s)
                print(
                    f"torchprof_hooks: {2 * runs} runs, in turns, are about "
                    f"{left_s / 60:.1f} minutes",
                    file=sys.stderr,
                )


@contextmanager
def _noticing() -> Iterator[list[int]]:
    """Signals that would end us are only noted: at no moment would an exception lose a
    process that has just been started."""
    came: list[int] = []
    before: list[tuple[int, Any]] = []
    try:
        for number in _ENDING:
            handler = signal.signal(number, lambda given, _: came.append(given))
            before.append((number, handler))
        yield came
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _run(
    side: str, program: list[str], file: Path, functions: bool, came: list[int]
) -> None:
    printed, report = file.with_suffix(".txt"), file.with_suffix(".report")
    command = [
        *(sys.executable, *interpreter_options(sys.orig_argv), "-m", "torchprof_hooks"),
        *("--save", str(file), "--time-thunks", str(functions)),
        *("--destination", str(report), *program),
    ]
    with printed.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _wait(process, came)
    report.unlink(missing_ok=True)
    if process.returncode or not file.is_file():
        ended = "left no profile (one that never imports torch has none)"
        if process.returncode:
            ended = f"ended with exit code {process.returncode}"
        text = printed.read_text("utf-8", "replace")
        raise RunFailedError(
            f"the {side} program {ended}: {shlex.join(program)}",
            "\n".join(text.splitlines()[-_LINES:]),
        )
    printed.unlink()


def _wait(process: subprocess.Popen[bytes], came: list[int]) -> None:
    """Wait until the process ends; if we are to end, end it first, with all that it has
    started."""
    while not came:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_S)
            return
    _end(process, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_PATIENCE_S)
    _end(process, getattr(signal, "SIGKILL", signal.SIGTERM))
    process.wait()
    raise StoppedError(came[0])


def _end(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to all processes of its group."""
    if os.name == "nt":
        process.terminate()
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
