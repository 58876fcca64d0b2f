"""Who has the memory at the peak, as a tree of modules and functions: for a picture."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from torchprof_hooks.documents.build.layers import heat
from torchprof_hooks.documents.document import Column, Table
from torchprof_hooks.documents.words import KIND_TITLES
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.memory import HeldMemory, MemoryKind
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import BACKWARD_NAME, OUTSIDE_NAME, without_numbers

#: Where memory is: names from the outside in.
_Place = tuple[str, ...]


def module_of(profile: ProfileData, held: HeldMemory) -> str:
    """The module, or what else is no function, that has the memory: the functions that
    it calls have it for the module."""
    for name in reversed(held.path):
        if profile.modules.get(name, ModuleInfo()).kind != "function":
            return name
    return BACKWARD_NAME if held.phase == "backward" else OUTSIDE_NAME


def peak_tree(profile: ProfileData) -> Iterator[Table]:
    """All that is in use at the peak; nothing if that is not known."""
    if profile.memory is None or not profile.memory.at_peak:
        return
    own = defaultdict[_Place, Counter[MemoryKind]](Counter)
    for held in profile.memory.at_peak:
        place = _place_of(profile, held)
        for depth in range(1, len(place)):
            own[place[:depth]]  # those around have a row, too
        own[place][held.kind] += held.bytes
    places = [*_in_order(own)]
    kinds = profile.memory.bytes_by_kind()
    sizes = [own[place].total() for place in places]
    alike = Counter[str]()
    for place, size in zip(places, sizes, strict=True):
        alike[without_numbers(place[-1])] += size
    whole = max(profile.memory.peak_bytes, 1)
    yield Table(
        "memory_tree",
        "Memory in use at the peak",
        "owner",
        [_label(place) for place in places],
        [
            Column("bytes", "bytes", sizes, "self_bytes"),
            *(
                Column(
                    KIND_TITLES[kind],
                    "bytes",
                    [own[place][kind] for place in places],
                    f"{kind.replace(' ', '_')}_bytes",
                    is_detail=True,
                )
                for kind in kinds
            ),
        ],
        names=[place[-1] for place in places],
        depths=[len(place) - 1 for place in places],
        tones=[heat(alike[without_numbers(place[-1])] / whole) for place in places],
        drawing="tree",
        is_detail=True,
    )


def _place_of(profile: ProfileData, held: HeldMemory) -> _Place:
    """``Net``, ``Net.blocks``, ``Net.blocks.0``, and the functions called there."""
    module = module_of(profile, held)
    functions = held.path[held.path.index(module) + 1 :] if module in held.path else ()
    if held.phase == "optimizer" or module.startswith("("):
        return (module, *functions)
    parts = module.split(".")
    return (*(".".join(parts[: n + 1]) for n in range(len(parts))), *functions)


def _in_order(own: dict[_Place, Counter[MemoryKind]]) -> Iterator[_Place]:
    """Each place before those in it; of those beside it, the largest first."""
    total = Counter[_Place]()
    below = defaultdict[_Place, list[_Place]](list)
    for place, kinds in own.items():
        below[place[:-1]].append(place)
        for depth in range(1, len(place) + 1):
            total[place[:depth]] += kinds.total()
    coming: list[_Place] = [()]
    while coming:
        place = coming.pop()
        if place:
            yield place
        coming += sorted(below[place], key=lambda one: (total[one], one))


def _label(place: _Place) -> str:
    around = f"{place[-2]}." if len(place) > 1 else ""
    return place[-1].removeprefix(around)
