"""A CUDA runtime without a device: torch's own builds for CUDA run on it, with as many
devices as one wants.

`load` makes it the process's, before torch is imported. Kernels compute nothing and
take planted time, by a clock that only tests move: durations are right to the
nanosecond, and values are not to be looked at. ``torch.cuda._sleep(n)`` takes n
nanoseconds.
"""

from __future__ import annotations

import ast
import ctypes
import hashlib
import importlib.util
import os
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.devices.cuda import stubs

#: Torch is to call cuDNN's older functions, which are much fewer, and to count devices
#: without using them, as no fork of a process could use them then; and to compile
#: kernels in the process that wants them.
_ENVIRONMENT: Final = {
    "TORCH_CUDNN_V8_API_DISABLED": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}


class Ran(NamedTuple):
    """Work that a device was given, and when it did that, in nanoseconds of its clock.

    name: of a kernel, or "memcpy", "memset", "graph".
    thread: the system's number of the one that launched it.
    """

    name: str
    device: int
    stream: int
    launched_ns: int
    start_ns: int
    end_ns: int
    thread: int


class _Planted:
    """The runtime, as this process has loaded it."""

    def __init__(self) -> None:
        self.library: Any = None
        self.functions: list[str] = []


_planted: Final = _Planted()


def load() -> None:
    """Have it in this process: torch is not to be imported yet. It is built the first
    time for each torch, which takes half a minute.

    Raises:
        RuntimeError: there is no torch, or none that is built for CUDA.
    """
    if _planted.library is not None:
        return
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise RuntimeError("there is no torch")
    package = Path(found.origin).parent
    version = (package / "version.py").read_text()
    cuda = re.search(r"^cuda.*= (.*)$", version, re.MULTILINE)
    if cuda is None or cuda[1] == "None":
        raise RuntimeError("this torch is not built for CUDA")
    folder = _built(package / "lib", version, ast.literal_eval(cuda[1]))
    os.environ.update(_ENVIRONMENT, TRITON_LIBCUDA_PATH=str(folder))
    library = ctypes.CDLL(str(folder / "libplanted.so"), mode=ctypes.RTLD_GLOBAL)
    built = stubs.read(folder)
    for name in built.libraries:
        ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    _declare(library)
    _planted.library, _planted.functions = library, built.functions


def _built(libraries: Path, version: str, cuda: str) -> Path:
    """The folder in which it was built for this torch and these sources."""
    sources = [Path(stubs.__file__), *sorted(stubs.RUNTIME.iterdir())]
    said = [version, *(path.read_text() for path in sources)]
    key = hashlib.sha256("\0".join(said).encode()).hexdigest()[:16]
    above = Path(tempfile.gettempdir(), f"planted-cuda-{os.getuid()}")
    above.mkdir(mode=0o700, exist_ok=True)
    folder = above / key
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=above) as own:
            stubs.build(libraries, cuda, Path(own))
            if not folder.exists():  # another process may have been first
                Path(own).rename(folder)
                Path(own).mkdir()
    return folder


def _declare(library: Any) -> None:
    number = ctypes.c_int64
    library.planted_setting.restype = ctypes.POINTER(number)
    for name in ("number", "time", "log_size", "used_bytes"):
        getattr(library, f"planted_{name}").restype = number
    for name in ("log_entry", "missing_names"):
        getattr(library, f"planted_{name}").restype = ctypes.c_char_p
    library.planted_log_entry.argtypes = [number, ctypes.POINTER(number)]
    library.planted_plan.argtypes = [ctypes.c_char_p, number]
    for name in ("pass", "next"):
        getattr(library, f"planted_{name}").argtypes = [number]


def is_loaded() -> bool:
    """Whether this process has it."""
    return _planted.library is not None


def put(**settings: int) -> None:
    """Change settings: see `Settings` in runtime/planted.h."""
    for name, value in settings.items():
        place = _planted.library.planted_setting(name.encode())
        assert place, name
        place[0] = value


def plan(part_of_name: str, ns: int) -> None:
    """Kernels with this in their name take so long. The last plan that fits holds."""
    _planted.library.planted_plan(part_of_name.encode(), ns)


def plan_next(ns: int) -> None:
    """The next kernel that this thread launches takes so long."""
    _planted.library.planted_next(ns)


def forget() -> None:
    """Forget plans, and what has run."""
    _planted.library.planted_forget()


def now_ns() -> int:
    """The time of the host's clock."""
    return int(_planted.library.planted_time())


def pass_time(ns: int) -> None:
    """The host does something else for so long."""
    _planted.library.planted_pass(ns)


def number(name: str) -> int:
    """How often something has happened: "waits", "violations" (of what a capture
    forbids), "captures", "timing records", "timing records in captures", "bad records"
    and "bad times" (of events that are not the stream's); or "waited_ns"."""
    return int(_planted.library.planted_number(name.encode()))


def used_bytes(device: int) -> int:
    """What the program holds of a device."""
    return int(_planted.library.planted_used_bytes(device))


def calls() -> Counter[str]:
    """How often each function of CUDA's libraries was called."""
    size = len(_planted.functions)
    table = (ctypes.c_int64 * size).in_dll(_planted.library, "planted_counts")
    named = zip(_planted.functions, table, strict=True)
    return Counter({name: count for name, count in named if count})


def missing() -> list[str]:
    """Functions that were called, and that nobody has written."""
    return str(_planted.library.planted_missing_names().decode()).split()


def ran() -> list[Ran]:
    """What devices were given to do, in order."""
    library, out = _planted.library, (ctypes.c_int64 * 6)()
    return [
        Ran(library.planted_log_entry(place, out).decode(), *out)
        for place in range(library.planted_log_size())
    ]
