"""Merges calls of a function whose input shapes differ in lengths that vary."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from torchprof_hooks.profiles.cells import CellKey, Chain, Infos, add_cell
from torchprof_hooks.profiles.data import P
from torchprof_hooks.profiles.modules import Shapes
from torchprof_hooks.profiles.names import function_call_name
from torchprof_hooks.profiles.totals import Totals

#: A length (a size in one dimension) varies if it has more different values than this.
#: Fewer are kept apart: those of full batches and of the last one, or of a few tensors.
LENGTHS_KEPT: Final = 4

#: Names of calls with more tensors than they show end with this.
_MORE: Final = ", ...)"

#: Takes the place of the module around functions that an optimizer calls.
_OPTIMIZER: Final = "(optimizer)"

#: The module around a call ("": none), and the name of the call.
_Site = tuple[str, str]
#: The new name of each call that gets one.
RangeNames: TypeAlias = Mapping[_Site, str]
#: Calls by name, with the shapes of their inputs.
_Calls = Mapping[str, Shapes]


def with_ranges(profile: P) -> P:
    """The same numbers, with one name for calls in the same module that differ only in
    lengths that vary: ``linear(32x[5..97]x64, 64x64)``.

    Calls by optimizers keep their names: shapes of parameters do not vary.
    """
    names = range_names(profile.cells, profile.modules)
    if not names:
        return profile
    infos, cells = dict(profile.modules), dict[CellKey, Totals]()
    for (path, phase), totals in profile.cells.items():
        add_cell(cells, (renamed(path, names, infos), phase), totals)
    for (_, name), ranged in names.items():
        known = infos.get(ranged)
        infos[ranged] = known.merge(infos[name]) if known else infos[name]
    return profile.with_cells(cells, infos)


def renamed(path: Chain, names: RangeNames, infos: Infos) -> Chain:
    """A chain of calls with their new names."""
    return tuple(names.get(site, site[1]) for site in _sites(path, infos))


def range_names(
    cells: Iterable[CellKey], infos: Infos, kept: int = LENGTHS_KEPT
) -> RangeNames:
    """The new name of each call that gets one, by its module and its old name.

    kept: a length varies if it has more different values than this.
    """
    alike: defaultdict[tuple[str, str, tuple[int, ...], bool], dict[str, Shapes]]
    alike = defaultdict(dict)
    for path, _ in cells:
        *_, (around, name) = _sites(path, infos)
        info = infos[name]
        if info.kind == "function" and info.shapes:
            ranks = tuple(map(len, info.shapes))
            has_more = name.endswith(_MORE)
            alike[around, info.class_name, ranks, has_more][name] = info.shapes
    return {
        (around, name): _ranged(function, [calls[each] for each in group], has_more)
        for (around, function, _, has_more), calls in alike.items()
        if len(calls) > kept and around != _OPTIMIZER
        for group in _that_vary(calls, kept)
        for name in group
    }


def _sites(path: Chain, infos: Infos) -> Iterator[_Site]:
    """For each call in a chain, the module around it, and its name."""
    around = _OPTIMIZER if infos[path[0]].kind == "optimizer" else ""
    for name in path:
        if infos[name].kind == "module":
            around = name
        yield around, name


def _that_vary(calls: _Calls, kept: int) -> Iterator[list[str]]:
    """Groups of names that differ in lengths that vary, and in nothing else."""
    lengths = {name: _lengths(shapes) for name, shapes in calls.items()}
    columns = zip(*lengths.values(), strict=True)
    varies = [len(set(column)) > kept for column in columns]
    groups: defaultdict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, own in lengths.items():
        fixed = (v for v, is_any in zip(own, varies, strict=True) if not is_any)
        groups[tuple(fixed)].append(name)
    return (group for group in groups.values() if len(group) > 1)


def _lengths(shapes: Shapes) -> list[int]:
    return [length for shape in shapes for length in shape]


def _ranged(function: str, alike: Sequence[Shapes], has_more: bool) -> str:
    """One name for calls with all of these shapes, and maybe more."""
    ends = (
        [(min(lengths), max(lengths)) for lengths in zip(*shapes, strict=True)]
        for shapes in zip(*alike, strict=True)
    )
    texts = [[_range(*lengths) for lengths in shape] for shape in ends]
    name = function_call_name(function, texts)
    return name[:-1] + _MORE if has_more and not name.endswith(_MORE) else name


def _range(least: int, most: int) -> str:
    text = "?" if least < 0 else str(least)
    return text if least == most else f"[{text}..{most}]"
