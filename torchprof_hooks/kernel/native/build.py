"""Chooses the core of this process: the binary that this package brings for torch and
Python as they are here, or one that is built, once, into the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import BuiltinFunctionType, ModuleType
from typing import Final, Literal, NamedTuple

import torch
from torch.version import __version__ as TORCH_VERSION

from torchprof_hooks.kernel.native.compiler import (
    FLAGS,
    NotBuiltError,
    compile_extension,
    find_compiler,
)
from torchprof_hooks.kernel.native.verify import why_not
from torchprof_hooks.kernel.torch_names.tried import is_tried, minor
from torchprof_hooks.profiles.options import print_to

#: Environment variable that asks for a core: "native" or "python".
VARIABLE: Final = "TORCHPROF_HOOKS_CORE"
#: Name of the extension module.
NAME: Final = "torchprof_hooks_native"
SOURCE: Final = Path(__file__).with_name("native.cpp")
#: Folder of the headers that the source includes.
_HEADERS: Final = SOURCE.parent
#: Where a wheel has its binaries (see wheels/binaries.py). The source has none.
READY: Final = SOURCE.with_name("binaries")


class Core(NamedTuple):
    """The core of this process.

    name: "native" or "python".
    module: the native core; None if the core in Python runs.
    reason: why the native core does not run; "" if it does.
    """

    name: Literal["native", "python"]
    module: ModuleType | None = None
    reason: str = ""

    def needed_for(self, what: str) -> str:
        """One line: `what` is missing without the native core, and how to get it."""
        return (
            f"{what}: they need the native core, which does not run: {self.reason} "
            "(install a wheel of this package, or a C++ compiler)"
        )


def choose() -> Core:
    """The native core, unless it cannot be loaded, or the environment forbids it."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "python":
        return Core("python", reason=f"{VARIABLE}=python")
    if wanted not in ("", "native"):
        reason = f"{VARIABLE} must be 'native' or 'python', not {wanted!r}"
        return Core("python", reason=reason)
    if sys.platform == "darwin" and not wanted:
        reason = f"the native core is not tried out on macOS yet ({VARIABLE}=native)"
        return Core("python", reason=reason)
    try:
        module = native_module()
    except NotBuiltError as error:
        if READY.exists():  # elsewhere it may be usual, and each report says it
            print_to(None, f"torchprof_hooks: the core in Python measures: {error}")
        return Core("python", reason=str(error))
    clock = time.perf_counter_ns
    if not isinstance(clock, BuiltinFunctionType):  # somebody has replaced it
        module.set_clock(clock)
    return Core("native", module)


def native_module() -> ModuleType:
    """The native core: a binary of this package, or else one that is built if it is not
    there yet.

    Raises:
        NotBuiltError: neither can be loaded.
    """
    refused = ""
    if READY.exists():
        try:
            return _load(ready_path())
        except NotBuiltError as error:
            refused = f"{error}; "
    try:
        return _built_module()
    except NotBuiltError as error:
        raise NotBuiltError(f"{refused}{error}") from None


def ready_path() -> Path:
    """Where a wheel has the binary for this torch and Python, if it has one. Only what
    torch has released has the binary interface of its minor version.

    Raises:
        NotBuiltError: there is none.
    """
    name = f"torch-{minor(TORCH_VERSION)}{EXTENSION_SUFFIXES[0]}"
    if is_tried(TORCH_VERSION) and (path := READY / name).exists():
        return path
    raise NotBuiltError(
        f"this package has no native core for torch {TORCH_VERSION} and "
        f"{EXTENSION_SUFFIXES[0].split('.')[1]}"
    )


def _built_module() -> ModuleType:
    path = cached_path()
    try:
        is_there = path.exists()
    except OSError as error:
        raise NotBuiltError(f"no cache for the native core: {error}") from None
    if not is_there:
        build(path)
    # What cannot be loaded stays: each process would build the same again, and others
    # may be able to load it.
    return _load(path)


def cached_path() -> Path:
    """Where the binary is that is built here, or will be: its name has a hash of all
    that it depends on. That is not the compiler, which may be gone by now.

    Raises:
        NotBuiltError: there is no folder that is the user's alone.
    """
    if sys.platform not in ("linux", "darwin"):
        raise NotBuiltError(f"the native core is for Linux, and this is {sys.platform}")
    parts = (
        str(TORCH_VERSION),
        torch.version.git_version or "",
        sys.version,
        EXTENSION_SUFFIXES[0],  # machines of several kinds may have one home
        " ".join(FLAGS),
        f"C++11 ABI: {torch.compiled_with_cxx11_abi()}",
        *(path.read_text(encoding="utf-8") for path in _sources()),
    )
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return _own_folder() / f"{NAME}-{key}.so"


def _sources() -> list[Path]:
    return [SOURCE, *sorted(_HEADERS.rglob("*.h"))]


def build(path: Path) -> None:
    """Build the binary at `path`, unless another process has done so meanwhile. It is
    built beside it, and then renamed: what is there is complete.

    Raises:
        NotBuiltError: it cannot be built.
    """
    with _alone(path.parent):
        if path.exists():
            return
        find_compiler()  # before anything is said of building
        print_to(
            None,
            "torchprof_hooks: building the native core for this torch, once (it takes "
            f"about a minute, and is kept in {path.parent})",
        )
        with tempfile.TemporaryDirectory(dir=path.parent) as folder, _dots():
            built = Path(folder, path.name)
            compile_extension(SOURCE, built)
            built.replace(path)


#: Seconds from one dot to the next.
DOT_EVERY_S: Final = 2.0


@contextmanager
def _dots() -> Iterator[None]:
    """Show somebody who waits at a terminal that the block goes on: by dots."""
    stream = sys.stderr
    if stream is None or not stream.isatty():
        yield
        return
    ended = threading.Event()

    def show() -> None:
        while not ended.wait(DOT_EVERY_S):
            print(".", end="", file=stream, flush=True)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        print(file=stream)


def _load(path: Path) -> ModuleType:
    loader = ExtensionFileLoader(NAME, str(path))
    spec = spec_from_file_location(NAME, path, loader=loader)
    assert spec is not None
    try:
        module = module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        reason = f"the native core cannot be loaded: {error}"
        raise NotBuiltError(" ".join(reason.split())) from None
    if reason := why_not(module):
        raise NotBuiltError(reason)
    return module


def _own_folder() -> Path:
    """The folder in the user's cache. Nobody else may write there: what lies in it is
    loaded into the process."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):  # XDG: relative ones are ignored
        home = os.path.join("~", ".cache")
    try:
        folder = Path(home, "torchprof_hooks").expanduser()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        raise NotBuiltError(f"no cache for the native core: {error}") from None
    if found.st_uid != os.getuid():
        raise NotBuiltError(f"{folder} belongs to another user")
    if stat.S_IMODE(found.st_mode) & 0o022:
        raise NotBuiltError(f"others may write into {folder}: chmod 700 {folder}")
    return folder


def regions_folder() -> Path:
    """The folder in the user's cache for what is known of compiled code.

    Raises:
        NotBuiltError: there is no folder that is the user's alone.
        OSError: it cannot be made.
    """
    folder = _own_folder() / "compiled"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def clear_cache() -> Path:
    """Remove all that was built here, for any torch, and what is known of compiled
    code, with the folder. Processes that have it loaded go on. Returns where it was.

    Raises:
        NotBuiltError: it cannot be removed.
    """
    folder = _own_folder()
    with _alone(folder):
        for path in (*folder.glob(f"{NAME}-*"), folder / "lock"):
            path.unlink()
        shutil.rmtree(folder / "compiled", ignore_errors=True)
    with suppress(OSError):  # something else is in there
        folder.rmdir()
    return folder


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Run the block while no other process does, for the same folder."""
    import fcntl

    try:
        with Path(folder, "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise NotBuiltError(f"no cache for the native core: {error}") from None
