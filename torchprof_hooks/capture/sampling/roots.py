"""The modules that are called from outside of all others."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final

import torch

from torchprof_hooks.capture.record.site import Site

#: Weak: the program's modules die when they would without us.
ModuleReferences = list[weakref.ref[torch.nn.Module]]

#: After others have come, none must come for so many looks until those that are there
#: are relied on: at first; twice as many each time that others come all the same.
_LEAST_PATIENCE: Final = 16
#: Phases of what is neither a module nor a function, nor a part of backward.
_NO_CALLS: Final = ("optimizer", "outside")


class Watching(IntEnum):
    """Of which calls from outside the ends are seen, where nothing else is: of none; of
    all but those inside of modules that are evaluated, which cost something in each
    evaluation as well; of all."""

    NONE = 0
    OUTER = 1
    ALL = 2


class Roots:
    """The modules that were called from outside of all others.

    Some programs make modules anew all the time: a loss in each step, a model for each
    fold. Hooks on those that are there now do not show those that come.

    living: those that are alive.
    inner: ids of those inside of others that are evaluated.
    """

    def __init__(self) -> None:
        self.living: ModuleReferences = []
        self.inner: set[int] = set()
        self._known: tuple[set[int], set[int]] = (set(), set())
        self._references: dict[int, weakref.ref[torch.nn.Module]] = {}  # by their ids
        self._patience, self._unstable = _LEAST_PATIENCE // 2, 0

    @property
    def are_stable(self) -> bool:
        """Whether the next ones will be these, as far as is known."""
        return not self._unstable

    def find(self, outsides: Iterable[Site]) -> None:
        """Look for them, each once, in what was called from these places."""
        modules: dict[int, torch.nn.Module] = {}
        evaluated = set()
        references = {}
        for site, reference in _outermost_calls(outsides):
            references[id(reference)] = reference
            module = reference()
            if module is None:
                continue
            modules[id(module)] = module
            if site.is_evaluated:
                evaluated.add(id(module))
        self._compare(references)
        self.living = [weakref.ref(module) for module in modules.values()]
        known = set(modules), evaluated
        if known != self._known:  # else there is no need to walk through modules again
            self._known = known
            self.inner = {
                id(module)
                for key in evaluated
                for module in modules[key].modules()
                if id(module) != key and id(module) in modules
            }

    def _compare(self, references: dict[int, weakref.ref[torch.nn.Module]]) -> None:
        """See whether there are others than before: a module has one reference, however
        often it is asked for, which it has to itself also when it is gone."""
        before, self._references = self._references, references
        new = [references[key] for key in references.keys() - before.keys()]
        if (before and new) or any(reference() is None for reference in new):
            self._patience *= 2 if self.are_stable else 1
            self._unstable = self._patience
        elif self._unstable:
            self._unstable -= 1

    def watched(self, watching: Watching) -> ModuleReferences:
        """Those whose calls are to be seen."""
        if watching == Watching.OUTER:
            return [root for root in self.living if id(root()) not in self.inner]
        return self.living if watching == Watching.ALL else []


def _outermost_calls(
    outsides: Iterable[Site],
) -> Iterator[tuple[Site, weakref.ref[torch.nn.Module]]]:
    """Where modules were called, and the last one of each place, which may be gone."""
    for outside in outsides:
        for place in _outside_of_modules(outside):
            for known in place.children_by_name.values():
                for site in known:
                    if site.module is not None:
                        yield site, site.module


def _outside_of_modules(site: Site) -> Iterator[Site]:
    """Sites that calls of outermost modules can come from: an optimizer's closure is
    one, for example."""
    yield site
    for known in site.children_by_name.values():
        for inner in known:
            if inner.phase in _NO_CALLS:
                yield from _outside_of_modules(inner)
