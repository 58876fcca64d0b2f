"""Makes an environment with torch's build for CUDA, which needs no device and none of
CUDA's libraries: the planted runtime is there in each of its processes.

With TRITON=1 it has Triton, too, for tests of compiled code. It imports nothing but
Python's own. Exit code: 3 if that cannot be had here.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
#: What torch and our tests import.
NEEDED: Final = (
    *("typing_extensions", "sympy", "networkx", "jinja2", "fsspec", "filelock"),
    *("numpy", "setuptools", "tabulate", "pytest>=8", "pytest-xdist>=3.5"),
    *("hypothesis>=6", "expecttest"),
)
LEFT_OUT: Final = 3
#: What each of its processes begins with.
_START: Final = f"{ROOT}\nimport tests.devices.cuda.planted as _p; _p.load()\n"


class LeftOutError(Exception):
    """Why there is no such environment."""


def make(folder: Path, torch: str) -> None:
    """Make it, unless it is there.

    Raises:
        LeftOutError: something is not to be had here.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise LeftOutError(f"{platform.system()} on {platform.machine()}, not x86-64")
    for tool in ("g++", "nm", "readelf"):
        if shutil.which(tool) is None:
            raise LeftOutError(f"there is no {tool}")
    ready = folder / "ready"
    with_triton = bool(os.environ.get("TRITON"))
    said = "\n".join((torch, *NEEDED, "triton" * with_triton, _START))
    if ready.exists() and ready.read_text() == said:
        return
    venv.create(folder, clear=True, with_pip=True)
    _install(folder, "--no-deps", f"torch=={torch}")
    (packages,) = folder.glob("lib/python*/site-packages")
    version = (packages / "torch" / "version.py").read_text()
    if "cuda: Optional[str] = None" in version or "cuda = None" in version:
        raise LeftOutError(f"this torch {torch} is not built for CUDA")
    _install(folder, *NEEDED)
    # What Inductor writes its kernels in: large, and needed by few tests.
    metadata = next(packages.glob("torch-*.dist-info/METADATA")).read_text()
    triton = re.search(r"^Requires-Dist: (triton[^;]*)", metadata, re.MULTILINE)
    if triton is not None and with_triton:
        _install(folder, triton[1].strip())
    (packages / "planted_cuda.pth").write_text(_START)
    ready.write_text(said)


def _install(folder: Path, *what: str) -> None:
    pip = (str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet")
    options = ("--disable-pip-version-check", "--no-cache-dir")
    command = (*pip, *options, *what)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["pip failed"]
        raise LeftOutError(f"{' '.join(what)} is not to be had: {said[-1]}")


def main(torch: str = "2.15.0", folder: str = "") -> int:
    """Make the environment; says so in one line if that is not possible."""
    try:
        make(Path(folder or ROOT / f".venv-cuda-{torch}"), torch)
    except LeftOutError as error:
        print(f"torch on a planted CUDA runtime is left out: {error}")
        return LEFT_OUT
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
