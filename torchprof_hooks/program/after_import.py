"""Waits for the first import of a module. This file imports nothing but `sys`, as most
of the programs in which it waits never import torch."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def call_after_import(name: str, call: Callable[[], None]) -> None:
    """Call `call` after the first import of a module; now, if it is imported."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, AfterImport(name, call))


class AfterImport:
    """A finder on `sys.meta_path` that calls a function after the first import of a
    module, and then removes itself. If a program only asks whether the module is
    installed, the finder stays, and waits for its import."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name = name
        self._call = call

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """The spec that other finders find, with a loader that calls the function."""
        if fullname != self._name:
            return None
        finders = list(sys.meta_path)
        # Only finders behind this one: another `AfterImport` would call it in turn.
        behind = finders.index(self) + 1 if self in finders else len(finders)
        for finder in finders[behind:]:
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
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                _let_other_threads_import(module)
                self._call()

        vars(loader)["exec_module"] = exec_module


def _let_other_threads_import(module: ModuleType) -> None:
    """Mark `module`, whose code has run, as imported. Otherwise, other threads that
    import it would wait for our function, which could end in a deadlock."""
    if hasattr(module.__spec__, "_initializing"):
        module.__spec__._initializing = False  # type: ignore[union-attr]
