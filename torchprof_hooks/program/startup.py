"""Begins to profile a program: with its first import of torch, or at once."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from torchprof_hooks.program import beginning  # noqa: F401  - notes the time
from torchprof_hooks.program.flags import Flags, make_flags, parse_flags

#: The environment variable that is read when the package is imported.
VARIABLE: Final = "TORCHPROF_HOOKS_FLAGS"


def enable(**flags: Any) -> None:
    """Profile the rest of the program: this thread, until the process ends; then print
    the report.

    Args:
        flags: by their names, with or without "profiling." in front; `profile` is True
            by default. See the README for what there is.

    Raises:
        FlagError: there is no such flag, or it cannot have the value.
    """
    begin(make_flags({"profile": True, **flags}))


def begin_from_environment(environment: Mapping[str, str]) -> None:
    """Do what `VARIABLE` says. A flag that is malformed ends the program, with exit
    code 2: it would go unnoticed otherwise until the program ends."""
    text = environment.get(VARIABLE, "")
    if not text or multiprocessing.current_process().name != "MainProcess":
        return  # children print nothing of their own
    try:
        flags = parse_flags(text)
    except ValueError as error:
        print(f"{VARIABLE}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    begin_with_torch(flags, sys.meta_path)


def begin_with_torch(
    flags: Flags | Mapping[str, str], meta_path: MutableSequence[Any]
) -> None:
    """Begin as soon as torch is imported; a program may set up its environment before
    that, and may never do it."""
    wanted = flags if isinstance(flags, Flags) else make_flags(flags)
    if not wanted.profile and not wanted.print_global_stats:
        return
    if "torch" in sys.modules:
        begin(wanted)
    else:
        meta_path.insert(0, _AfterImport("torch", lambda: begin(wanted), meta_path))


def begin(flags: Flags) -> None:
    """Begin now."""
    import torch  # noqa: F401  - first: somebody may be waiting for it to begin, too

    try:
        from torchprof_hooks.program.recorder import start

        start(flags)
    except Exception as error:  # the program goes on, whatever it is
        print(f"torchprof_hooks: cannot measure: {error!r}", file=sys.stderr)


class _AfterImport(MetaPathFinder):
    """Calls a function after the first import of a module."""

    def __init__(
        self, name: str, call: Callable[[], None], meta_path: MutableSequence[Any]
    ) -> None:
        self._name = name
        self._call = call
        self._meta_path = meta_path

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """The spec that others find, with a loader that calls the function."""
        if fullname != self._name:
            return None
        self._meta_path.remove(self)
        for finder in self._meta_path:
            spec: ModuleSpec | None = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._call_after(spec.loader)
                return spec
        return None

    def _call_after(self, loader: Loader) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            execute(module)
            self._call()

        vars(loader)["exec_module"] = exec_module
