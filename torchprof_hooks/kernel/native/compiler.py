"""Runs the C++ compiler, and gives up on one that hangs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

#: Seconds after which the compiler is given up. It needs 10 to 100.
LONGEST_S: Final = 600.0
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
            code = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                timeout=LONGEST_S,
                check=False,
            ).returncode
        except OSError as error:
            raise NotBuiltError(f"{command[0]} cannot be run: {error}") from None
        except subprocess.TimeoutExpired:
            raise NotBuiltError(
                f"{command[0]} has not built the native core in {LONGEST_S:.0f} s"
            ) from None
        if code or not target.exists():
            messages.seek(0)
            said = messages.read().splitlines()
            [reason, *_] = [*(s for s in said if "error" in s), *said, "no message"]
            raise NotBuiltError(f"{command[0]} cannot build the native core: {reason}")


def find_compiler() -> str:
    """The C++ compiler: that of the environment variable CXX, or g++ or another one."""
    for name in (os.environ.get("CXX", ""), "g++", "c++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise NotBuiltError("there is no C++ compiler (set CXX, or install g++)")
