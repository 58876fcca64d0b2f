"""Which hooks are active: per thread, and per module."""

from __future__ import annotations

import threading
import weakref
from typing import Generic, TypeVar

import torch

Active = TypeVar("Active")


class Registry(Generic[Active]):
    """Active hooks by name. A name that is taken or unknown is a ``KeyError``."""

    def __init__(self) -> None:
        self._active: dict[str, Active] = {}

    def check_free(self, name: str) -> None:
        """Raise if there is a hook called `name`."""
        if name in self._active:
            raise KeyError(
                f"hook {name!r} already exists: delete it first, or give this one "
                "another name"
            )

    def add(self, name: str, active: Active) -> None:
        """Register what belongs to the hook called `name`."""
        self._active[name] = active

    def get(self, name: str) -> Active:
        """What was registered under `name`."""
        if name not in self._active:
            known = ", ".join(map(repr, self._active)) or "none"
            raise KeyError(f"no hook {name!r} here; the registered ones: {known}")
        return self._active[name]

    def remove(self, name: str) -> None:
        """Forget the hook called `name`."""
        del self._active[name]

    def __contains__(self, name: str) -> bool:
        return name in self._active

    def __bool__(self) -> bool:
        return bool(self._active)


class _ThreadWide(threading.local):
    def __init__(self) -> None:
        self.hooks: Registry[object] = Registry()


_thread_wide = _ThreadWide()
_of_modules: dict[int, Registry[object]] = {}
_living: dict[int, weakref.ref[torch.nn.Module]] = {}


def hooks_of_thread() -> Registry[object]:
    """Hooks that are active for all modules in the running thread."""
    return _thread_wide.hooks


def hooks_of_module(module: torch.nn.Module) -> Registry[object]:
    """Hooks that were put on `module` itself; forgotten when the module dies."""
    key = id(module)
    if key not in _of_modules:
        _of_modules[key] = Registry()
        _living[key] = weakref.ref(module, lambda _: forget_module(key))
    return _of_modules[key]


def forget_module(key: int) -> None:
    """Drop what is known of the module with this id."""
    _of_modules.pop(key, None)
    _living.pop(key, None)


def has_own_hook(module: torch.nn.Module, name: str) -> bool:
    """Whether a hook called `name` was put on `module` itself."""
    hooks = _of_modules.get(id(module))
    return hooks is not None and name in hooks
