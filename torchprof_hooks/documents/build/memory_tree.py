"""Who has the memory at the peak, as a tree of modules and functions: for a picture."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from torchprof_hooks.documents.build.layers import heat
from torchprof_hooks.documents.document import Column, Table
from torchprof_hooks.documents.words import KIND_TITLES, kind_name
from torchprof_hooks.profiles.cells import call_site
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.kinds import LayerKind, kinds_of_names
from torchprof_hooks.profiles.memory import HeldMemory, MemoryKind
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import BACKWARD_NAME, OUTSIDE_NAME

#: Where memory is: names from the outside in.
_Path = tuple[str, ...]
_Sums = dict[_Path, Counter[MemoryKind]]


def module_of(profile: ProfileData, held: HeldMemory) -> str:
    """The module, or what else is no function, that has the memory: the functions that
    it calls have it for the module."""
    for name in reversed(held.path):
        if profile.modules.get(name, ModuleInfo()).kind != "function":
            return name
    return BACKWARD_NAME if held.phase == "backward" else OUTSIDE_NAME


def kind_column(kind: MemoryKind, sizes: Sequence[int]) -> Column:
    """The bytes of one kind."""
    return Column(KIND_TITLES[kind], "bytes", sizes, kind_name(kind))


def peak_tree(profile: ProfileData) -> Iterator[Table]:
    """All that is in use at the peak; nothing if that is not known."""
    if profile.memory is None or not profile.memory.at_peak:
        return
    own = defaultdict[_Path, Counter[MemoryKind]](Counter)
    for held in profile.memory.at_peak:
        place = _place_of(profile, held)
        own[place][held.kind] += held.bytes
    total = _with_inner(own)
    places = [*_in_order(total)]
    kinds = profile.memory.bytes_by_kind()
    sizes = [own[place].total() for place in places]
    totals = [total[place].total() for place in places]
    alike, kind = Counter[LayerKind](), kinds_of_names(profile.modules)
    for place, size in zip(places, sizes, strict=True):
        alike[kind(place[-1])] += size
    whole = max(profile.memory.peak_bytes, 1)
    yield Table(
        "memory_tree",
        "Memory in use at the peak",
        "owner",
        [_path_label(profile, place) for place in places],
        [
            Column("total", "bytes", totals, "bytes"),
            Column("%", "share", [size / whole for size in totals], "share"),
            Column("own", "bytes", sizes, "self_bytes"),
            *(
                kind_column(kind, [total[place][kind] for place in places])
                for kind in kinds
            ),
        ],
        names=[_name(profile, place) for place in places],
        depths=[len(place) - 1 for place in places],
        tones=[heat(alike[kind(place[-1])] / whole) for place in places],
        notes=[
            "as wide as what a module, function or optimizer has in use, with all "
            "below it; the bar at the bottom: what it has itself"
        ],
        drawing="tree",
        is_detail=True,
    )


def _place_of(profile: ProfileData, held: HeldMemory) -> _Path:
    """``Net``, ``Net.blocks``, ``Net.blocks.0``, and the functions called there."""
    module = module_of(profile, held)
    functions = held.path[held.path.index(module) + 1 :] if module in held.path else ()
    if held.phase == "optimizer" or module.startswith("("):
        return (module, *functions)
    parts = module.split(".")
    return (*(".".join(parts[: n + 1]) for n in range(len(parts))), *functions)


def _with_inner(own: _Sums) -> _Sums:
    """The memory of each place with all in it, by kind."""
    total = defaultdict[_Path, Counter[MemoryKind]](Counter)
    for place, kinds in own.items():
        for depth in range(1, len(place) + 1):
            total[place[:depth]] += kinds
    return total


def _in_order(total: _Sums) -> Iterator[_Path]:
    """Each place before those in it; of those beside it, the largest first."""
    below = defaultdict[_Path, list[_Path]](list)
    for place in total:
        below[place[:-1]].append(place)
    coming: list[_Path] = [()]
    while coming:
        place = coming.pop()
        if place:
            yield place
        coming += sorted(below[place], key=lambda one: (total[one].total(), one))


def _name(profile: ProfileData, place: _Path) -> str:
    """``Net.blocks.0``; of a function with its module."""
    return call_site(place, {n: profile.modules.get(n, ModuleInfo()) for n in place})


def _path_label(profile: ProfileData, place: _Path) -> str:
    """The new part of the name, and the class of a module: ``0: Block``."""
    around = f"{place[-2]}." if len(place) > 1 else ""
    name = place[-1].removeprefix(around)
    info = profile.modules.get(place[-1], ModuleInfo())
    has_class = info.kind == "module" and info.class_name not in ("", name)
    return f"{name}: {info.class_name}" if has_class else name
