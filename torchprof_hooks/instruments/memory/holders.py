"""Who holds memory, and what it is, as far as the ledger knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from torchprof_hooks.instruments.memory.known_tensors import KnownTensors, Owner
from torchprof_hooks.instruments.memory.steps import Holder
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.profiles.memory import MEMORY_KINDS, HeldMemory, MemoryKind
from torchprof_hooks.profiles.names import BACKWARD_NAME, OUTSIDE_NAME, Phase

#: What blocks are of which nothing was known, by the phase of the call that took them:
#: in the middle of a step; and when they were freed before the next backward began.
_IF_RUNNING: Final[dict[Phase, MemoryKind]] = {
    "forward": "activation",
    "recompute": "activation",
    "outside": "other",
}
_IF_GONE: Final[dict[Phase, MemoryKind]] = {"recompute": "activation"}


def made_in(site: Site) -> Phase:
    """The phase of what is made at a site: a function that is called outside of modules
    may make a batch, or what backward needs."""
    is_outside = site.phase == "forward" and site.enclosing.phase == "outside"
    return "outside" if is_outside else site.phase


class _Modules:
    """Whose calls are those at each site: also those of functions are a module's."""

    def __init__(self, sites: list[Site]) -> None:
        self._sites = sites
        self._around: dict[tuple[str, ...], tuple[str, ...]] = {}  # functions
        self._owners: list[Owner] = []

    def owners(self) -> list[Owner]:
        """The owner for each site."""
        self._owners += map(self._owner, self._sites[len(self._owners) :])
        return self._owners

    def _owner(self, site: Site) -> Owner:
        path, phase = site.path, site.phase
        if site.function is not None:
            if phase != "backward":
                path, phase = site.enclosing.path, site.enclosing.phase
                self._around[site.path] = path
            else:  # called from the pass, but of the path of its forward
                path = self._around.get(path, path)
        outside = BACKWARD_NAME if phase == "backward" else OUTSIDE_NAME
        return path or (outside,), phase


class Holders:
    """Names who holds what: the ledger has codes of owners, and numbers of kinds, of
    which it gives (code, kind, bytes)."""

    def __init__(self, sites: list[Site], known: KnownTensors) -> None:
        self._sites = sites
        self._known = known
        self._of_modules = _Modules(sites)

    def owner(self, code: int) -> Owner:
        """The owner of this code."""
        if code < 0:
            return self._known.owner(code)
        site = self._sites[code]
        return site.path or (OUTSIDE_NAME,), site.phase

    def in_use(self, holdings: Iterable[tuple[int, int, int]]) -> Counter[Holder]:
        """Who holds how many bytes; what functions hold is their module's."""
        found: Counter[Holder] = Counter()
        of_modules = self._of_modules.owners()
        for code, number, size in holdings:
            path, phase = of_modules[code] if code >= 0 else self.owner(code)
            found[path, phase, _kind(number, phase, _IF_RUNNING)] += size
        return found

    def held(
        self, holdings: Iterable[tuple[int, int, int]], is_running: bool = False
    ) -> tuple[HeldMemory, ...]:
        """The same in detail, the largest first.

        is_running: whether that is in the middle of a step: what forward has made is
            not known to be temporary.
        """
        found: Counter[Holder] = Counter()
        for code, number, size in holdings:
            path, phase = self.owner(code)
            taken_in = made_in(self._sites[code]) if code >= 0 else phase
            kind = _kind(number, taken_in, _IF_RUNNING if is_running else _IF_GONE)
            found[path, phase, kind] += size
        order = sorted(found.items(), key=lambda held: (-held[1], held[0]))
        return tuple(HeldMemory(*key, size) for key, size in order if size)


def _kind(number: int, phase: Phase, if_unknown: dict[Phase, MemoryKind]) -> MemoryKind:
    kind = MEMORY_KINDS[number]
    return if_unknown.get(phase, kind) if kind == "temporary" else kind
