"""Builds the planted CUDA runtime for the torch that is installed, and a stub of each
of CUDA's libraries that it needs: the loader then asks for no other.

A stub has all functions that torch imports from the library. Each counts its calls, and
goes on to the function of the runtime, or says that it is missing.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

RUNTIME: Final = Path(__file__).with_name("runtime")

#: What libraries of CUDA are called.
_OF_CUDA: Final = re.compile(r"lib(cu|nccl|nvrtc|nvToolsExt|nvshmem|nvJitLink)")
_FUNCTION: Final = re.compile(r"(cu|nccl|nvshmem|nvml)[A-Z_]|cusparseLt")
#: Where functions are whose import does not say so: the first that fits.
_HOMES: Final = (
    ("cuFile", "libcufile.so.0"),
    ("cusparseLt", "libcusparseLt.so.0"),
    ("nccl", "libnccl.so.2"),
    ("nvshmem", "libnvshmem_host.so.3"),
    ("nvml", "libnvidia-ml.so.1"),
    ("cu", "libcuda.so.1"),
)
#: What a library returns for "not supported".
_CODES: Final = {
    "libcudart": 801,
    "libcuda.": 801,
    "libcublas": 15,
    "libcudnn": 3000,
    "libcusparse.": 10,
    "libnccl": 3,
}

#: The functions of a library, with their versions, which may be "".
Symbols = dict[str, str]


class Built(NamedTuple):
    """What a folder has: the names of libraries, and of functions by their numbers."""

    libraries: list[str]
    functions: list[str]


def _run(*command: str) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout


def build(torch_libraries: Path, cuda: str, folder: Path) -> None:
    """Build all of it.

    torch_libraries: where torch has its own.
    cuda: the version that it was built for, such as "13.2".
    """
    runtime = folder / "libplanted.so"
    major, minor = map(int, cuda.split(".")[:2])
    sources = map(str, sorted(RUNTIME.glob("*.cpp")))
    options = ("-std=c++20", "-O1", "-g", "-fPIC", "-shared")
    version = f"-DPLANTED_CUDA={1000 * major + 10 * minor}"
    _run("g++", *options, version, "-o", str(runtime), *sources, "-ldl")
    defined = _run("nm", "-D", "--defined-only", str(runtime))
    have = {name[2:] for name in re.findall(r" T (p_\w+)", defined)}
    wanted = _wanted(sorted(torch_libraries.glob("*.so")))
    for name in have:  # torch asks for some by their names
        for prefix, library in (("cu", "libcuda.so.1"), ("nvml", "libnvidia-ml.so.1")):
            if re.match(f"{prefix}[A-Z]", name):
                wanted.setdefault(library, {}).setdefault(name, "")
    functions: list[str] = []
    for library, symbols in sorted(wanted.items()):
        _build_stub(folder, library, symbols, have, first=len(functions))
        functions += sorted(symbols)
    (folder / "libcuda.so").symlink_to("libcuda.so.1")  # as older Tritons ask for it
    (folder / "libraries").write_text("\n".join(sorted(wanted)))
    (folder / "functions").write_text("\n".join(functions))


def read(folder: Path) -> Built:
    """What was built there."""
    return Built(
        *((folder / name).read_text().split() for name in ("libraries", "functions"))
    )


def _wanted(libraries: list[Path]) -> dict[str, Symbols]:
    """What torch imports, by library."""
    wanted: defaultdict[str, Symbols] = defaultdict(dict)
    for each in libraries:
        for name in re.findall(r"NEEDED.*\[(.*)\]", _run("readelf", "-d", str(each))):
            if _OF_CUDA.match(name):
                wanted.setdefault(name, {})
    for each in libraries:
        imported = _run("nm", "-D", "--undefined-only", str(each))
        for name in re.findall(r" [UwWv] (\S+)", imported):
            symbol, _, version = name.partition("@")
            version = version.lstrip("@")
            home = _home(symbol, version, wanted)
            if home:
                wanted[home][symbol] = version
    return dict(wanted)


def _home(symbol: str, version: str, libraries: Iterable[str]) -> str:
    """The library that has a function; "": none of CUDA's."""
    if version in libraries:
        return version
    if version == "NVSHMEM":
        return "libnvshmem_host.so.3"
    if version or not _FUNCTION.match(symbol):
        return ""
    return next(library for of, library in _HOMES if symbol.startswith(of))


def _build_stub(
    folder: Path, library: str, symbols: Symbols, have: set[str], first: int
) -> None:
    """first: the number under which the first of its functions is counted."""
    code = next((n for of, n in _CODES.items() if library.startswith(of)), 1)
    lines, texts = [".text"], [".section .rodata"]
    for number, symbol in enumerate(sorted(symbols), first):
        lines += [
            f".globl {symbol}",
            f".type {symbol},@function",
            f"{symbol}:",
            "movq planted_counts@GOTPCREL(%rip), %r11",
            f"lock incq {8 * number}(%r11)",
        ]
        if symbol in have:
            lines.append(f"jmp *p_{symbol}@GOTPCREL(%rip)")
        else:
            texts.append(f'.Lname{number}: .asciz "{symbol}"')
            lines += [
                f"leaq .Lname{number}(%rip), %rdi",
                f"movl ${code}, %esi",
                "jmp *planted_missing@GOTPCREL(%rip)",
            ]
    end = '.section .note.GNU-stack,"",@progbits'
    source = folder / f"{library}.s"
    source.write_text("\n".join([*lines, *texts, end, ""]))
    options = ["-shared", "-nostdlib", f"-Wl,-soname,{library}", "-Wl,-rpath,$ORIGIN"]
    if any(symbols.values()):
        script = folder / f"{library}.map"
        script.write_text(_versions(symbols))
        options.append(f"-Wl,--version-script={script}")
    target = ["-o", str(folder / library), str(source)]
    _run("g++", *options, *target, f"-L{folder}", "-lplanted")


def _versions(symbols: Symbols) -> str:
    by_version: defaultdict[str, list[str]] = defaultdict(list)
    for symbol, version in symbols.items():
        if version:
            by_version[version].append(symbol)
    return "\n".join(
        f"{version} {{ global: {'; '.join(names)}; }};"
        for version, names in by_version.items()
    )
