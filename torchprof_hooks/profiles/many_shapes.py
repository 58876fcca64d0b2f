"""Makes one call of calls of a function whose inputs come in many shapes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from torchprof_hooks.profiles.cells import CellKey, Chain, Infos, add_cell
from torchprof_hooks.profiles.data import P
from torchprof_hooks.profiles.totals import Totals

#: As many shapes of a function in one module are kept apart: those of a few tensors, of
#: full batches and of the last one.
SHAPES_KEPT: Final = 4

#: Takes the place of the module around what an optimizer calls: shapes of parameters
#: are as many as there are, and stay apart.
_OPTIMIZER: Final = "(optimizer)"

#: The module around a call ("": none), and the name of the call.
_Site = tuple[str, str]
#: The new name of each call that gets one.
CommonNames: TypeAlias = Mapping[_Site, str]


def with_common_names(profile: P) -> P:
    """The same numbers, with one name for calls of a function in one module, if these
    have more than `SHAPES_KEPT` shapes: ``linear (23 shapes)``."""
    names = common_names(profile.cells, profile.modules)
    if not names:
        return profile
    cells: dict[CellKey, Totals] = {}
    infos = with_infos(profile.modules, names)
    for (path, phase), totals in profile.cells.items():
        add_cell(cells, (renamed(path, names, infos), phase), totals)
    return profile.with_cells(cells, infos)


def common_names(
    cells: Iterable[CellKey], infos: Infos, kept: int = SHAPES_KEPT
) -> CommonNames:
    """The new name of each call that gets one, by its module and its old name.

    kept: as many shapes are kept apart.
    """
    alike: defaultdict[_Site, set[str]] = defaultdict(set)
    for path, _ in cells:
        *_, (around, name) = _sites(path, infos)
        info = infos[name]
        if info.kind == "function" and info.shapes and around != _OPTIMIZER:
            alike[around, info.class_name].add(name)
    return {
        (around, name): f"{function} ({len(calls)} shapes)"
        for (around, function), calls in alike.items()
        if len(calls) > kept
        for name in calls
    }


def with_infos(infos: Infos, names: CommonNames) -> Infos:
    """The descriptions of names, and those of the new ones."""
    found = dict(infos)
    for (_, name), common in names.items():
        merged = found[common].merge(infos[name]) if common in found else infos[name]
        found[common] = replace(merged, shapes=None)
    return found


def renamed(path: Chain, names: CommonNames, infos: Infos) -> Chain:
    """A chain of calls with their new names."""
    return tuple(names.get(site, site[1]) for site in _sites(path, infos))


def _sites(path: Chain, infos: Infos) -> Iterator[_Site]:
    """For each call in a chain, the module around it, and its name."""
    around = _OPTIMIZER if infos[path[0]].kind == "optimizer" else ""
    for name in path:
        if infos[name].kind == "module":
            around = name
        yield around, name
