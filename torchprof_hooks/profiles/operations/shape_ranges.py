"""Merges calls of a function whose inputs differ in lengths that vary."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from torchprof_hooks.profiles.cells import CellKey, Chain, Infos, add_cell
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.totals import Totals

#: Up to this many values of a length are kept apart: those of full batches and of the
#: last one, or of a few tensors. A length with more values varies.
LENGTHS_KEPT: Final = 4

_LENGTH: Final = re.compile(r"\d+")

#: Stands for the module around functions that an optimizer calls.
_OPTIMIZER: Final = "(optimizer)"

#: The module around a call ("": none), and the name of the call.
_Site = tuple[str, str]


def with_ranges(profile: Profile) -> Profile:
    """The same numbers, with one name for calls at one place that differ only in
    lengths that vary: ``linear(32x[5..97]x64, 64x64)``.

    Calls by optimizers keep their names: shapes of parameters do not vary.
    """
    names = _names_with_ranges(profile)
    infos, cells = dict(profile.modules), dict[CellKey, Totals]()
    for (path, phase), totals in profile.cells.items():
        renamed = tuple(names.get(site, site[1]) for site in _sites(path, infos))
        add_cell(cells, (renamed, phase), totals)
    for (_, name), ranged in names.items():
        known = infos.get(ranged)
        infos[ranged] = known.merge(infos[name]) if known else infos[name]
    return replace(profile, cells=cells, modules=infos) if names else profile


def _names_with_ranges(profile: Profile) -> dict[_Site, str]:
    """New names for calls, by their old ones."""
    alike: defaultdict[_Site, set[str]] = defaultdict(set)
    for path, _ in profile.cells:
        *_, (around, name) = _sites(path, profile.modules)
        function, has_shapes, shapes = name.partition("(")
        if has_shapes and profile.modules[name].kind == "function":
            alike[around, function + _LENGTH.sub("0", shapes)].add(name)
    return {
        (around, name): _ranged(group)
        for (around, _), names in alike.items()
        if len(names) > LENGTHS_KEPT and around != _OPTIMIZER
        for group in _that_vary(names)
        for name in group
    }


def _sites(path: Chain, infos: Infos) -> Iterator[_Site]:
    """For each call in a chain, the module around it, and its name."""
    around = _OPTIMIZER if infos[path[0]].kind == "optimizer" else ""
    for name in path:
        if infos[name].kind == "module":
            around = name
        yield around, name


def _that_vary(names: set[str]) -> Iterator[list[str]]:
    """Groups of names that differ in lengths that vary, and in nothing else."""
    lengths = {name: _LENGTH.findall(name.partition("(")[2]) for name in names}
    columns = zip(*lengths.values(), strict=True)
    varies = [len(set(column)) > LENGTHS_KEPT for column in columns]
    groups: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, own in lengths.items():
        fixed = (v for v, is_any in zip(own, varies, strict=True) if not is_any)
        groups[tuple(fixed)].append(name)
    return (group for group in groups.values() if len(group) > 1)


def _ranged(group: list[str]) -> str:
    """One name for all of these."""
    function, _, shapes = group[0].partition("(")
    lengths = (map(int, _LENGTH.findall(name.partition("(")[2])) for name in group)
    ends = iter([(min(c), max(c)) for c in zip(*lengths, strict=True)])

    def written(_: re.Match[str]) -> str:
        least, most = next(ends)
        return str(least) if least == most else f"[{least}..{most}]"

    return f"{function}({_LENGTH.sub(written, shapes)}"
