"""A Python that has torch, and forks for each program that it is to run.

Most of what a small program takes is the import of torch and of its compiler (which
optimizers import): seconds, each time. A fork has them, out of sight: an import of
torch finds them, and is to all who wait for it what it is in a new interpreter. (The
same goes for those modules of ours that only show what was measured.) So is all else
that programs look at: arguments, environment, path, streams, `__main__`, a
sitecustomize that the path has, and the end, but for one thing: when functions of
atexit have been called, and streams are flushed, the process is gone. (To take torch's
modules apart takes longer than most programs.) See `tests.running` for who asks.

Arguments: the path of a socket, which brings a line for each program and takes its
exit code; and what to import. The end of the socket is the end. A line may also ask for
another Python like this one, which imports more: that is a fork, too.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import socket
import sys
import warnings
import weakref
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import BuiltinImporter, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NoReturn

#: arguments, environment, folder, and the files that are the streams.
Request = dict[str, Any]

_PATH = sys.path[1:]
_KEPT: list[object] = []
_CODES: list[int] = []


#: Of these, forks get what is loaded; of what else belongs to us, nothing.
_GIVEN = ("torch", "torchprof_hooks.profiles", "torchprof_hooks.documents")


class OutOfSight(MetaPathFinder):
    """Has packages, and gives each to the first who imports it."""

    def __init__(self) -> None:
        self._packages = {package: _taken(package) for package in _GIVEN}
        _taken("torchprof_hooks")

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if not self._packages.get(fullname):
            return None
        return ModuleSpec(fullname, _Giver(self), is_package=True)

    def package(self, name: str) -> ModuleType:
        return self._packages[name][name]

    def give(self, name: str) -> None:
        sys.modules.update(self._packages.pop(name))
        if not self._packages:
            sys.meta_path.remove(self)


def _taken(package: str) -> dict[str, ModuleType]:
    """What is loaded of it, which is not to be seen any more."""
    found = {
        name: module
        for name, module in sys.modules.items()
        if f"{name}.".startswith(f"{package}.")
    }
    for name in found:
        del sys.modules[name]
    return found


class _Giver(Loader):
    def __init__(self, finder: OutOfSight) -> None:
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = self._finder.package(spec.name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        self._finder.give(module.__name__)


def serve(path: str, names: Sequence[str]) -> Request:
    """Comes back in forks alone, with what each is to run."""
    control = socket.socket(socket.AF_UNIX)
    control.connect(path)
    _load(names)
    lines = control.makefile("r")
    gc.collect()
    gc.freeze()
    for line in lines:
        request: Request | None = json.loads(line)
        if request and "load" in request:
            if not os.fork():
                lines.close()
                control.close()
                return serve(request["socket"], request["load"])
            continue
        code = 0
        while request is not None:
            reader, writer = os.pipe()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()  # libraries have threads, which wait for work
            if not child:
                os.close(reader)
                lines.close()
                control.close()
                return {**request, "writer": writer}
            os.close(writer)
            with open(reader) as told:
                then = told.read()
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            request = {**request, **json.loads(then)} if then else None
        control.sendall(f"{code}\n".encode())
    os._exit(0)


def run(request: Request) -> None:
    """Be a new interpreter with these arguments."""
    for stream, path in enumerate(request["streams"]):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND if stream else os.O_RDONLY)
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    arguments = list(request["arguments"])
    sys.orig_argv = [sys.executable, *arguments]
    while arguments[:1] == ["-W"]:
        warnings.simplefilter(arguments[1])
        sys.warnoptions.append(arguments[1])
        arguments = arguments[2:]
    sys.meta_path.insert(0, OutOfSight())
    entries = [e for e in os.environ.get("PYTHONPATH", "").split(os.pathsep) if e]
    sys.path[:] = [os.path.abspath(entry) for entry in entries] + _PATH
    if any((Path(entry) / "sitecustomize.py").exists() for entry in entries):
        sys.modules.pop("sitecustomize", None)
        import_module("sitecustomize")
    if arguments[:2] == ["-m", "torchprof_hooks"]:
        _hand_over_to(request["writer"])
    else:
        os.close(request["writer"])
    _run_main(arguments)


def _noting_the_code(request: Request) -> None:
    """Run it, and note how it ends, if Python would not kill the process itself."""
    try:
        run(request)
    except SystemExit as ending:
        if ending.code is None or isinstance(ending.code, int):
            _CODES.append((ending.code or 0) & 0xFF)
        else:
            _CODES.append(1)
        raise
    except Exception as error:
        _CODES.append(1)
        told = error.with_traceback(_below_this_file(error.__traceback__))
        sys.excepthook(type(told), told, told.__traceback__)
        raise SystemExit(1) from None
    _CODES.append(0)


def _below_this_file(trace: TracebackType | None) -> TracebackType | None:
    """What a new interpreter would tell of."""
    while trace and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _go() -> None:
    """Be gone, after all other functions of atexit. Where a stream is closed or cannot
    be flushed, Python has to say so."""
    if _CODES:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except Exception:
            return
        os._exit(_CODES[0])


def _hand_over_to(writer: int) -> None:
    """Another fork runs what this process would become."""

    def execve(path: str, command: list[str], environment: dict[str, str]) -> NoReturn:
        assert path == sys.executable
        become = {"arguments": command[1:], "environment": environment}
        os.write(writer, json.dumps({**become, "folder": os.getcwd()}).encode())
        os._exit(0)

    os.execve = execve  # type: ignore[assignment]


def _run_main(arguments: list[str]) -> None:
    main = ModuleType("__main__")
    _KEPT.append(sys.modules["__main__"])
    sys.modules["__main__"] = main
    kind, *rest = arguments
    if kind == "-m":
        sys.argv = arguments[:1] + arguments[2:]
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
        return
    sys.argv = arguments
    vars(main).update(__builtins__=__builtins__, __loader__=BuiltinImporter)
    if kind == "-c":
        sys.argv = arguments[:1] + arguments[2:]
        code = compile(rest[0], "<string>", "exec")
    elif kind == "-":
        code = compile(sys.stdin.read(), "<stdin>", "exec")
        vars(main).update(__file__="<stdin>", __cached__=None)
    else:
        path = os.path.abspath(kind)
        code = compile(Path(path).read_bytes(), path, "exec")
        loader = SourceFileLoader("__main__", path)
        vars(main).update(__file__=path, __cached__=None, __loader__=loader)
    is_script = kind not in ("-c", "-")
    sys.path.insert(0, os.path.dirname(os.path.realpath(kind)) if is_script else "")
    exec(code, vars(main))


def _load(names: Sequence[str]) -> None:
    """What forks are to have. Not Triton, which torch's compiler imports if it is
    there: it would complain, at the end of each fork, of what others have not freed."""
    sys.modules["triton"] = None  # type: ignore[assignment]
    root = str(Path(__file__).parents[1])
    sys.path.append(root)  # of ours, where it is not installed
    for name in names:
        import_module(name)
    sys.path.remove(root)
    del sys.modules["triton"]
    for library in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        library.atexit = False  # torch's are taken apart, one operator after the other


if __name__ == "__main__":
    atexit.register(_go)  # the first: the last that is called
    _noting_the_code(serve(sys.argv[1], sys.argv[2:]))
