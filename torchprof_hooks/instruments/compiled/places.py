"""Where kernels of compiled code are booked: below the call that runs the code, as if
their modules had been called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Final, NamedTuple

import torch

from torchprof_hooks.instruments.compiled.kernel_map import (
    Calls,
    Kernel,
    KernelMap,
    names_in,
)
from torchprof_hooks.instruments.compiled.wrapper import WrapperFunction
from torchprof_hooks.kernel.reading import Reading
from torchprof_hooks.kernel.torch_names.inductor import OPTIMIZER
from torchprof_hooks.kernel.torch_names.modules import class_name, original_module
from torchprof_hooks.kernel.tree import Site, profiled_path
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import (
    FUSED_CLASS,
    MODULE_PHASES,
    Phase,
    optimizer_name,
)

Path = tuple[str, ...]

#: What a fused kernel computes besides that of modules inside.
_OWN: Final = "(own)"
#: So many modules are in the name of a fused kernel.
_NAMED: Final = 4
#: Phases in which compiled code may have an optimizer step.
_WITH_OPTIMIZERS: Final = ("outside", "forward")


class Places(NamedTuple):
    """Where kernels of a function are booked that runs in one call.

    sites: of each kernel, and of what comes after the last one: the call itself.
    begun: of each kernel, the sites of calls that begin with it.
    """

    sites: list[Site]
    begun: list[list[Site]]


class Placing:
    """Finds the places for kernels of one function that runs in the call at `base`.

    Kernels of one module and phase share a site, which takes time and does not count as
    a call: a call of a module is each run of the function in which it takes part. There
    is another site for that, and for those of the modules around.
    """

    def __init__(self, reading: Reading, base: Site, function: WrapperFunction) -> None:
        self._reading, self._base, self._function = reading, base, function
        self._names = reading.tree.names
        around = base.enclosing.living_module()
        self._root, self._inside = None, set[int]()
        self._prefix = profiled_path(base)
        if around is not None:
            self._root, self._prefix = original_module(around), base.enclosing.path
            self._inside = {id(module) for module in self._root.modules()}

    def find(self) -> Places:
        """All of them; those that are not there yet are made."""
        base, known = self._base, set[Site]()
        sites: list[Site] = []
        begun: list[list[Site]] = []
        for kernel in self._function.kernels:
            path, phase = self._place(kernel)
            if path == self._prefix or phase is None:
                sites.append(base)
                begun.append([])
                continue
            lengths = range(len(self._prefix) + 1, len(path) + 1)
            calls = [self._site(path[:length], phase, True) for length in lengths]
            begun.append([site for site in calls if site not in known])
            known.update(calls)
            sites.append(self._site(path, phase, False))
        return Places([*sites, base], begun)

    def _place(self, kernel: Kernel) -> tuple[Path, Phase | None]:
        """None: the call at `base` has no parts."""
        phase, base = self._base.phase, self._base
        if not kernel.owners:
            path = self._named(kernel.name)
        elif kernel.owners[0][:1] and kernel.owners[0][0].source == OPTIMIZER:
            path = *self._prefix, optimizer_name(kernel.owners[0][0].class_name)
            return path, "optimizer" if base.phase in _WITH_OPTIMIZERS else None
        else:
            path = self._path(kernel.owners)
        if phase == "outside":
            return path, "forward"
        if phase == "backward" and kernel.is_forward:
            return path, "recompute"
        return path, phase if phase in MODULE_PHASES else None

    def _site(self, path: Path, phase: Phase, counts: bool) -> Site:
        known = self._base.children_by_name.setdefault((f"{path} {counts}", phase), [])
        if not known:
            site = self._reading.tree.new_site(self._base, path, phase)
            site.is_counted = counts
            known.append(site)
        return known[0]

    # Paths

    def _named(self, kernel: str) -> Path:
        """The place of a kernel of which nobody knows whose it is."""
        name = ".".join([*self._prefix[-1:], kernel])
        self._describe(name, "kernel")
        return (*self._prefix, name)

    def _path(self, owners: Iterable[Calls]) -> Path:
        """The place of a kernel: if it is that of several modules, in the innermost
        module around all of them."""
        paths = [*dict.fromkeys((*self._prefix, *self._chain(o)) for o in owners)]
        if len(paths) == 1:
            return paths[0]
        around = _common(paths)
        parts = [short_name(path, around) for path in paths]
        more = [f"{len(parts) - _NAMED} more"] if len(parts) > _NAMED else []
        label = "fused: " + " + ".join([*parts[:_NAMED], *more])
        name = ".".join([*around[-1:], label])
        self._describe(name, FUSED_CLASS)
        return (*around, name)

    def _chain(self, calls: Calls) -> Path:
        """Names of the modules, from the one in the call at `base` on inwards."""
        if not calls:
            return ()
        modules = self._by_id(calls) or self._by_name(calls)
        if modules:
            assert self._root is not None
            found = (self._name(m, self._root) for m in modules if m is not self._root)
            return tuple(dict.fromkeys(found))
        return self._from_outermost(calls)

    def _by_id(self, calls: Calls) -> list[torch.nn.Module]:
        """The modules, if they are the ones for which the code was compiled."""
        found = [_alive(self._function.known, call.key) for call in calls]
        inside = [m for m in found if m is not None and id(m) in self._inside]
        return inside if inside and inside[-1] is found[-1] else []

    def _by_name(self, calls: Calls) -> list[torch.nn.Module]:
        """The modules of the same names in the call at `base`: blocks that are alike
        share code, which was compiled for one of them."""
        found: list[torch.nn.Module] = []
        for call in calls:
            module = self._root
            for name in names_in(call.source):
                module = None if module is None else module._modules.get(name)
            if module is None or class_name(module) != call.class_name:
                return []
            found.append(module)
        return found

    def _name(self, module: torch.nn.Module, around: torch.nn.Module) -> str:
        known = self._names.get(module) or self._names.add_child(module, around)
        return known or class_name(module)

    def _from_outermost(self, calls: Calls) -> Path:
        """Names of modules that are in no other one which is being called."""
        root = _alive(self._function.known, calls[0].key)
        if root is None:
            top = calls[0].class_name
        else:
            top = self._names.get(root) or self._names.add_root(root)
        outer = names_in(calls[0].source)
        names = []
        for call in calls:
            name = ".".join([top, *names_in(call.source)[len(outer) :]])
            self._describe(name, call.class_name)
            names.append(name)
        self._names.infos[top] = replace(self._names.infos[top], compiled=True)
        return tuple(dict.fromkeys(names))

    def _describe(self, name: str, kind: str) -> None:
        self._names.infos.setdefault(name, ModuleInfo(kind))


def _alive(known: KernelMap | None, key: int) -> torch.nn.Module | None:
    reference = None if known is None else known.modules.get(key)
    return None if reference is None else reference()


def _common(paths: Sequence[Path]) -> Path:
    """What all paths begin with."""
    levels = zip(*paths, strict=False)
    return tuple(each[0] for each in takewhile(lambda e: len({*e}) == 1, levels))


def short_name(path: Path, around: Path) -> str:
    """The name of a module, as seen from the one around it, which a number alone does
    not say: ``blocks.2``."""
    if path == around:
        return _OWN
    outer = around[-1] if around else ""
    name = path[-1].removeprefix(f"{outer}.")
    return f"{outer.rpartition('.')[2]}.{name}" if name[:1].isdigit() else name
