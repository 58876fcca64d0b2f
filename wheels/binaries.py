"""Compiles the native core for each minor version of torch and of Python, for a wheel.

``python wheels/binaries.py --python python3.10 python3.11`` puts them into
``build/binaries``. No torch is installed for that, only its headers are fetched; those
that the core includes are the same in its wheels for all platforms, for CPU and CUDA.
Instead of torch's libraries, it is linked with empty ones of their names. What is up to
date is not compiled again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple
from zipfile import ZipFile

ROOT: Final = Path(__file__).parents[1]
CORE: Final = ROOT / "torchprof_hooks" / "kernel" / "native"
BUILD: Final = ROOT / "build"

PORTABLE: Final = Path(__file__).with_name("portable.cpp")
#: torch's libraries are needed at run time, though their stand-ins define nothing.
OPTIONS: Final = (
    ("-Wl,-x",)  # names of its own
    if sys.platform == "darwin"
    else ("-D_GLIBCXX_USE_CXX11_ABI=1", "-Wl,--no-as-needed", "-s")
)

#: The newest release of each minor version of torch, and the minor versions of Python
#: that it has wheels for.
TORCH: Final = {
    "2.8": ("2.8.0", range(10, 14)),
    "2.9": ("2.9.1", range(10, 15)),
    "2.10": ("2.10.0", range(10, 15)),
    "2.11": ("2.11.0", range(10, 15)),
    "2.12": ("2.12.1", range(10, 15)),
    "2.13": ("2.13.0", range(10, 15)),
    "2.14": ("2.14.1", range(10, 15)),
    "2.15": ("2.15.0", range(11, 15)),
}
#: The smallest of torch's wheels, and those without files of CUDA.
PLATFORMS: Final = ("macosx_11_0_arm64", "macosx_12_0_arm64", "macosx_14_0_arm64")

#: What stands for libraries when the core is linked: their names at run time, and
#: symbols with their versions. The last two are part of the C library since glibc 2.34,
#: where these symbols have that version; but an older one has to do.
STUBS: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "c10": ("libc10.so", {}),
    "torch_cpu": ("libtorch_cpu.so", {}),
    "dl": (
        "libdl.so.2",
        {"dlopen": "GLIBC_2.2.5", "dlsym": "GLIBC_2.2.5"},
    ),
    "pthread": ("libpthread.so.0", {"pthread_mutex_trylock": "GLIBC_2.2.5"}),
}
#: The first glibc for some machines is younger than those versions.
OLDEST: Final = {"aarch64": "GLIBC_2.17"}

_ASK: Final = """
import json, sys, sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
include = sysconfig.get_paths()["include"]
print(json.dumps([sys.version_info[1], include, EXTENSION_SUFFIXES[0]]))
"""


class Interpreter(NamedTuple):
    """A Python to compile for."""

    minor: int
    include: str
    suffix: str


def interpreter(command: str) -> Interpreter | None:
    """What a command runs; None if there is no such command."""
    if shutil.which(command) is None:
        return None
    asked = [command, "-c", _ASK]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return None if done.returncode else Interpreter(*json.loads(done.stdout))


def compiling() -> ModuleType:
    """The module that compiles cores where they are used. Not imported from the
    package, which needs torch."""
    spec = spec_from_file_location("compiler", CORE / "compiler.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def headers(version: str) -> Path:
    """The headers of a version of torch, fetched once."""
    folder = BUILD / "headers" / version
    if not folder.exists():
        print(f"headers of torch {version}", flush=True)
        (part := folder.with_suffix(".part")).mkdir(parents=True, exist_ok=True)
        chosen = [f"--platform={name}" for name in PLATFORMS]
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                *("--only-binary=:all:", "--python-version=3.12", *chosen),
                *(f"--dest={part}", f"torch=={version}"),
            ],
            check=True,
        )
        [wheel] = part.glob("*.whl")
        with ZipFile(wheel) as archive:
            names = archive.namelist()
            wanted = [name for name in names if name.startswith("torch/include/")]
            archive.extractall(part, wanted)
        wheel.unlink()
        part.rename(folder)
    return folder / "torch" / "include"


def stubs(compiler: str) -> Path:
    """Libraries that have names, and no more than that."""
    folder = BUILD / "stubs"
    folder.mkdir(parents=True, exist_ok=True)
    for name, (soname, symbols) in STUBS.items():
        code = "".join(f"void {symbol}() {{}}\n" for symbol in symbols)
        versions = version_script(symbols)
        (source := folder / f"{name}.c").write_text(code)
        (script := folder / f"{name}.map").write_text(versions)
        command = [compiler, "-x", "c", "-shared", "-fPIC", "-nostdlib", "-w"]
        if versions:
            command.append(f"-Wl,--version-script={script}")
        linked = [f"-Wl,-soname,{soname}", "-o", str(folder / f"lib{name}.so")]
        subprocess.run([*command, str(source), *linked], check=True)
    return folder


def version_script(symbols: Mapping[str, str]) -> str:
    """What tells the linker the versions of symbols."""
    found: dict[str, str] = {}
    for symbol, usual in symbols.items():
        version = OLDEST.get(platform.machine(), usual)
        found[version] = f"{found.get(version, '')} {symbol};"
    return "".join(f"{version} {{{names} }};\n" for version, names in found.items())


def key(version: str, suffix: str, flags: Sequence[str]) -> str:
    """What a binary depends on."""
    sources = [PORTABLE, CORE / "native.cpp", *sorted(CORE.rglob("*.h"))]
    texts = [path.read_text() for path in sources]
    parts = (version, suffix, *flags, *OPTIONS, repr(STUBS), *texts)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def main(arguments: Sequence[str]) -> int:
    """Compile what the arguments name. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", nargs="+", default=["python3"])
    parser.add_argument("--torch", nargs="+", default=list(TORCH), choices=TORCH)
    given = parser.parse_args(arguments)
    found = {name: interpreter(name) for name in given.python}
    for name in [name for name, python in found.items() if python is None]:
        print(f"{name} is not there: no binaries for it", flush=True)
    compile_all(given.torch, [python for python in found.values() if python])
    return 0


def compile_all(minors: Sequence[str], pythons: Sequence[Interpreter]) -> None:
    """Compile what is not up to date, and remove all other binaries."""
    compiler = compiling()
    target = BUILD / "binaries"
    target.mkdir(parents=True, exist_ok=True)
    wanted = {
        target / f"torch-{minor}{python.suffix}": (TORCH[minor][0], python)
        for minor in minors
        for python in pythons
        if python.minor in TORCH[minor][1]
    }
    for path in {*target.glob("*.so")} - set(wanted):
        path.unlink()
    for path, (version, python) in wanted.items():
        compile_one(compiler, path, version, python)


def compile_one(
    compiler: ModuleType, path: Path, version: str, python: Interpreter
) -> None:
    """Compile a binary, unless it is up to date."""
    stamp = path.with_suffix(".key")
    present = key(version, python.suffix, compiler.FLAGS)
    if path.exists() and stamp.exists() and stamp.read_text() == present:
        return
    print(path.name, flush=True)
    links: list[str] = []
    if sys.platform != "darwin":  # there, it finds what torch has loaded
        libraries = stubs(compiler.find_compiler())
        links = [str(PORTABLE), f"-L{libraries}", *(f"-l{name}" for name in STUBS)]
    compiler.run_compiler(
        CORE / "native.cpp",
        path,
        (python.include, str(headers(version))),
        links,
        *OPTIONS,
    )
    stamp.write_text(present)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
