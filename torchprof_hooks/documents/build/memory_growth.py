"""What is said of memory that grows from step to step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from torchprof_hooks.documents.build.memory import owner_kinds, owners_of
from torchprof_hooks.documents.document import Column, Table
from torchprof_hooks.documents.render.units import best_byte_format
from torchprof_hooks.documents.words import KIND_TITLES
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.kinds import grouped
from torchprof_hooks.profiles.memory import MemoryKind

#: The most owners that the warning names, and rows in a text.
_NAMED: Final = 2
_MOST_OWNERS: Final = 12
_NOTE: Final = (
    "A cache that is still filling, and what is collected in an epoch, look the same"
)


class _Grown(NamedTuple):
    """A module, with other layers of its kind; or what is no module.

    added: the bytes of a step, by kind.
    """

    label: str
    added: Counter[MemoryKind]
    bytes: int
    since_step: int


def _kinds(added: Counter[MemoryKind]) -> str:
    return ", ".join(KIND_TITLES[kind] for kind, _ in added.most_common())


def _grown(profile: ProfileData) -> list[_Grown]:
    """Whose memory grows, most first."""
    growing = profile.memory.growing if profile.memory else ()
    found = []
    for every in grouped(growing, owner_kinds(profile)).values():
        [owner] = owners_of(profile, every)
        added: Counter[MemoryKind] = Counter()
        for one in every:
            added[one.kind] += one.bytes_per_step
        since = min(one.since_step for one in every)
        found.append(_Grown(owner.label, added, owner.total, since))
    return sorted(found, key=lambda one: (-one.added.total(), one.label))


def grown_kinds(profile: ProfileData) -> Counter[MemoryKind]:
    """What grows: the bytes of a step, by kind."""
    return sum((one.added for one in _grown(profile)), Counter[MemoryKind]())


def growth_warnings(profile: ProfileData) -> Iterator[str]:
    """That memory grows: how much, since when, and whose."""
    grown = _grown(profile)
    if not grown:
        return
    added = grown_kinds(profile)
    since = min(one.since_step for one in grown)
    parts = [
        f"{one.label} {best_byte_format(one.added.total())}" for one in grown[:_NAMED]
    ]
    if len(grown) > _NAMED:
        parts.append(f"{len(grown) - _NAMED} more")
    yield (
        f"Memory grows by {best_byte_format(added.total())} a step since step {since}: "
        f"{', '.join(parts)} ({_kinds(added)})"
    )


def growth_table(profile: ProfileData) -> Iterator[Table]:
    """Whose memory grows, and what of it; nothing if none does."""
    grown = _grown(profile)
    if not grown:
        return
    added = [one.added.total() for one in grown]
    shares = [size / sum(added) for size in added]
    columns = [
        Column("kind", "text", [_kinds(one.added) for one in grown], "kinds"),
        Column("a step", "bytes", added, "bytes_per_step"),
        Column("in use", "bytes", [one.bytes for one in grown], "bytes"),
        Column("since step", "count", [one.since_step for one in grown], "since_step"),
        Column("%", "share", shares, "share"),
    ]
    yield Table(
        "memory_growth",
        "Memory that grows with each step, by owner",
        "owner",
        [one.label for one in grown],
        columns,
        most=_MOST_OWNERS,
        left_out="{count} more owners, {share}",
        shares=shares,
        notes=[_NOTE],
    )
