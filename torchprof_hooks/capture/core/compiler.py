"""Runs the C++ compiler, and gives up on one that hangs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

#: A compiler that uses no processor time for so many seconds is taken to hang. It needs
#: 5 to 15 s of one core, and may get only a hundredth of that core on a busy machine.
PATIENCE_S: Final = 60.0
#: torch 2.15 needs C++20, which 2.8 takes as well. Without NDEBUG, `at::RecordFunction`
#: is laid out in another way than in torch.
#: Hidden: where the first core does not fit, a process loads another one, and what has
#: one name in both must not become one object.
FLAGS: Final = (
    *("-O1", "-DNDEBUG", "-std=c++20", "-fPIC", "-w"),
    *("-fvisibility=hidden", "-fvisibility-inlines-hidden"),
    *(
        ("-bundle", "-undefined", "dynamic_lookup")
        if sys.platform == "darwin"
        else ("-shared",)
    ),
)


class NotBuiltError(Exception):
    """There is no native core here; the message says why."""


def compile_extension(source: Path, target: Path) -> None:
    """Compile an extension of Python against the installed torch.

    Raises:
        NotBuiltError: it cannot be compiled; the message has the compiler's reason.
    """
    import sysconfig  # large, and only needed here

    import torch

    package = Path(torch.__file__).parent
    includes = (sysconfig.get_paths()["include"], str(package / "include"))
    is_new = int(torch.compiled_with_cxx11_abi())
    links = (f"-L{package / 'lib'}", "-lc10", "-ltorch_cpu")
    run_compiler(source, target, includes, links, f"-D_GLIBCXX_USE_CXX11_ABI={is_new}")


def run_compiler(
    source: Path,
    target: Path,
    includes: Iterable[str],
    links: Iterable[str],
    *more: str,
) -> None:
    """Compile an extension. It uses no torch: wheels are built without one.

    Raises:
        NotBuiltError: it cannot be compiled; the message has the compiler's reason.
    """
    command = [
        *(find_compiler(), *FLAGS, *more),
        *(f"-I{folder}" for folder in includes),
        *(str(source), *links, "-o", str(target)),
    ]
    with tempfile.TemporaryFile("w+", dir=target.parent, errors="replace") as messages:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                start_new_session=True,
            )
        except OSError as error:
            raise NotBuiltError(f"{find_compiler()} cannot be run: {error}") from None
        try:
            _wait_for(process)
        finally:
            _end(process)
        if process.returncode or not target.exists():
            messages.seek(0)
            said = messages.read().splitlines()
            [reason, *_] = [*filter(_is_error, said), *said, "no message"]
            raise NotBuiltError(
                f"{find_compiler()} cannot build the native core: {reason}"
            )


def _is_error(line: str) -> bool:
    return "error" in line


def _wait_for(process: subprocess.Popen[bytes]) -> None:
    """Wait until `process` has ended.

    Raises:
        NotBuiltError: it hangs.
    """
    used_s = 0.0
    while True:
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            before_s, used_s = used_s, _processor_time_s(process.pid)
            if used_s <= before_s:
                raise NotBuiltError(
                    f"{find_compiler()} hangs: it has done nothing for "
                    f"{PATIENCE_S:.0f} s"
                ) from None
        else:
            return


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill `process` and those that it has started, as far as they still run."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _processor_time_s(session: int) -> float:
    """The processor time that the processes of a session have used."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            found = path.read_text().rpartition(")")[2].split()
            if int(found[3]) == session:
                ticks += sum(map(int, found[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def find_compiler() -> str:
    """The C++ compiler: that of the environment variable CXX, or g++ or another one."""
    for name in (os.environ.get("CXX", ""), "g++", "c++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise NotBuiltError("there is no C++ compiler (set CXX, or install g++)")
