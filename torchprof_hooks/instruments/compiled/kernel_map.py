"""Which modules the kernels of compiled code belong to, as Inductor says it while it
writes that code."""

from __future__ import annotations

import gc
import json
import re
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from torchprof_hooks.files.writing import write_text
from torchprof_hooks.kernel.attachments import Layer, Patch
from torchprof_hooks.kernel.native.build import regions_folder
from torchprof_hooks.kernel.native.compiler import NotBuiltError
from torchprof_hooks.kernel.torch_names import Function, Place
from torchprof_hooks.kernel.torch_names.inductor import (
    NOTICED_IN,
    ModuleCall,
    calls_of,
    kernel_notice,
    nodes_of,
    wrapper_maker,
)

#: Calls of modules, outermost first, that a part of a kernel belongs to; (): to none,
#: as a loss or an optimizer does.
Calls = tuple[ModuleCall, ...]


class Kernel(NamedTuple):
    """A kernel call in the code of a wrapper.

    owners: whom parts of it belong to; several, if it is fused.
    is_forward: whether it computes nothing but forward, maybe again, in a backward.
    """

    name: str
    owners: tuple[Calls, ...]
    is_forward: bool = False


@dataclass(frozen=True)
class KernelMap:
    """The kernel calls of a wrapper, in the order of its code.

    modules: those that were there when it was compiled, by their ids. Empty if the map
        is from a file.
    """

    kernels: tuple[Kernel, ...]
    modules: dict[int, weakref.ref[torch.nn.Module]] = field(default_factory=dict)


def kernel(name: str, nodes: Iterable[Any]) -> Kernel:
    """Classify a kernel call by the nodes that it computes."""
    found = [calls_of(node) for node in nodes]
    owners = dict.fromkeys(calls for calls, _ in found) or {(): None}
    return Kernel(name, tuple(owners), all(is_forward for _, is_forward in found))


# While torch compiles


class _Compiled(threading.local):
    """The kernel calls of the graph whose code this thread writes; None: of none."""

    kernels: list[tuple[str, list[Any]]] | None = None


_compiled: Final = _Compiled()


def _make_notice(original: Function, layer: Layer) -> Function:
    def notice(node_schedule: Any, kernel_name: str, is_extern: bool = False) -> Any:
        if layer.is_on and _compiled.kernels is not None:
            nodes = []
            with suppress(Exception):  # torch compiles on, whatever it gives
                nodes = nodes_of(node_schedule, is_extern)
            _compiled.kernels.append((kernel_name, nodes))
        return original(node_schedule, kernel_name, is_extern)

    return notice


def _make_maker(original: Function, layer: Layer) -> Function:
    def compile_to_module(self: Any) -> Any:
        if not layer.is_on:
            return original(self)
        around, _compiled.kernels = _compiled.kernels, []
        try:
            wrapper = original(self)
            with suppress(Exception):  # as above: there is no map then
                found = [kernel(*each) for each in _compiled.kernels]
                keep(_key(wrapper.__file__), found)
        finally:
            _compiled.kernels = around
        return wrapper

    return compile_to_module


def _notice_in(module: str) -> Patch:
    def find() -> Place:
        return kernel_notice(module)

    return Patch(find, _make_notice)


#: What is on torch while it compiles.
map_patches: Final = (*map(_notice_in, NOTICED_IN), Patch(wrapper_maker, _make_maker))

#: Maps whose wrapper has not been met yet, by the base name of its file.
_maps: Final[dict[str, KernelMap]] = {}


def keep(key: str, kernels: Iterable[Kernel]) -> None:
    """Keep the map of a wrapper, here and in a file."""
    found = KernelMap(tuple(kernels))
    wanted = {c.key for k in found.kernels for calls in k.owners for c in calls}
    for each in gc.get_objects():  # torch has kept ids of modules, and no names
        if id(each) in wanted and isinstance(each, torch.nn.Module):
            found.modules[id(each)] = weakref.ref(each)
    _maps[key] = found
    _write(key, found.kernels)


def map_of(path: str | None) -> KernelMap | None:
    """The map of the wrapper in the file `path`; None if nobody has kept it."""
    return _maps.pop(_key(path), None) or _read(_key(path))


def forget_maps() -> None:
    """Forget the maps of wrappers that were met before: torch loads code only once."""
    _maps.clear()


def _key(path: str | None) -> str:
    """The name of a wrapper's file is a hash of its content; the folder is not."""
    return Path(path or "").stem


# In files: code that comes from a cache of torch's has been compiled by another process

#: So many of the newest maps are kept.
MAPS_KEPT: Final = 1000


def _write(key: str, kernels: tuple[Kernel, ...]) -> None:
    with suppress(OSError, NotBuiltError):  # without a folder, there is no file
        folder = regions_folder()
        write_text(json.dumps(kernels), folder / f"{key}.json")
        files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in files[:-MAPS_KEPT]:
            path.unlink(missing_ok=True)


def _read(key: str) -> KernelMap | None:
    try:
        text = Path(regions_folder(), f"{key}.json").read_text(encoding="utf-8")
        return KernelMap(tuple(_kernel(*each) for each in json.loads(text)))
    except (OSError, NotBuiltError, ValueError, TypeError, RecursionError):
        return None  # there is none, or it is damaged


def _kernel(name: str, owners: list[list[list[Any]]], is_forward: bool) -> Kernel:
    calls = tuple(
        tuple(ModuleCall(0, str(source), str(kind)) for _, source, kind in each)
        for each in owners
    )
    return Kernel(str(name), calls, bool(is_forward))


_WORD: Final = re.compile(r"\w+")
_NO_NAMES: Final = ("_modules", "_orig_mod", "__self__")


def names_in(source: str) -> list[str]:
    """The names on the way from a variable to a module: ``["blocks", "0"]`` of
    ``L['self']._modules['blocks'][0]``."""
    return [word for word in _WORD.findall(source)[2:] if word not in _NO_NAMES]
