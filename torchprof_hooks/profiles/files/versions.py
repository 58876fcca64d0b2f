"""Versions of the format, and how files of old ones become files of the newest.

Version 5 has cells as a table (before, each cell had the name of each number), and the
phase "garbage" (before, its time was that of whatever ran). It leaves out aliases and
"compiled" where they are empty.
Version 4 has the times of steps, and the phases "waiting", "communication" and
"compiling" (before, their time was that of whatever waited, or was compiled). Own times
are not below zero; implementation, inputs and place are left out where they are empty;
format and version are named once per file.
Version 3 has the phase "data" (before, its time was in "outside"), operations, what
measuring took, implementations and inputs. Version 2 has memory and functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from torchprof_hooks.profiles.files.codec import (
    DamageError,
    checked_object,
    short_repr,
    wrong,
)

FORMAT: Final = "torchprof_hooks profile"
VERSION: Final = 5

#: The first version that names format and version once per file.
_ONE_HEADER: Final = 4
#: Fields of all cells before version 5; and those that cells had only where they were
#: not 0 (of memory: where one of them was not 0).
_FIELDS: Final = (
    *("path", "phase", "calls", "self_ns", "min_ns", "max_ns", "duration_ns"),
    *("squares_ns2", "device_self_ns"),
)
_MEMORY: Final = ("used_bytes", "acquired_bytes", "retained_bytes", "peak_bytes")
_LEFT_OUT: Final = ("flops", "overhead_ns", *_MEMORY)

#: The first fields of every file.
HEADER: Final = {"format": FORMAT, "version": VERSION}


def newest(content: Any) -> dict[str, Any]:
    """The content of a file, without its header, as the newest version has it.

    Raises:
        ValueError: the file is not a profile, or of a version that is not known.
    """
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError("is not a profile of torchprof_hooks")
    version = content.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise ValueError(
            f"has version {version!r}; this release reads versions 1 to {VERSION}"
        )
    kept = {**checked_object(content)}
    for name in HEADER:
        del kept[name]
    if version < VERSION:
        with suppress(AttributeError, KeyError, TypeError):  # the codec says what it is
            _upgrade(kept, version)
    return kept


def settle_debts(content: dict[str, Any]) -> None:
    """Make own times below zero 0, and subtract the difference from the largest ones,
    so that the sum stays the same. Times below zero come about where a profile was read
    while calls were open, or after an interrupt: then some time was booked twice."""
    own = content["cells"]["self_ns"]
    debt_ns = -sum(own_ns for own_ns in own if own_ns < 0)
    if debt_ns:
        own[:] = [max(own_ns, 0) for own_ns in own]
        for cell in sorted(range(len(own)), key=lambda cell: -own[cell]):
            paid_ns = min(own[cell], debt_ns)
            own[cell] -= paid_ns
            debt_ns -= paid_ns
    if "first" in content:
        _bound_first(content["first"]["cells"], content["cells"])


def _bound_first(first: dict[str, Any], every: dict[str, Any]) -> None:
    """Keep own times of first steps between 0 and those of all steps, too."""
    most = dict(zip(_keys(every), every["self_ns"], strict=True))
    first["self_ns"][:] = [
        min(max(own_ns, 0), most[key])
        for key, own_ns in zip(_keys(first), first["self_ns"], strict=True)
    ]


def _keys(cells: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    names = cells["names"]
    for path, phase in zip(cells["path"], cells["phase"], strict=True):
        yield tuple(names[number] for number in path), phase


def _upgrade(content: dict[str, Any], version: int) -> None:
    if version == 1:
        content.update(memory=None, undivided_passes=0)
    content["cells"] = _as_table(content["cells"])
    with suppress(KeyError, TypeError):
        settle_debts(content)
    for name, stratum in content.get("program", {}).get("strata", {}).items():
        profile = stratum["profile"]
        if version < _ONE_HEADER:
            for field in HEADER:
                del profile[field]
        try:
            _upgrade(profile, version)
        except DamageError as damage:
            raise damage.inside(f".program.strata.{name}.profile") from None


def _as_table(cells: Any) -> dict[str, list[Any]]:
    """A list for each field, of cells that are objects with all their fields."""
    if type(cells) is not list:
        raise wrong(cells, "a list").inside(".cells")
    rows = []
    for number, cell in enumerate(cells):
        try:
            rows.append(_row(cell))
        except DamageError as damage:
            raise damage.inside(f".cells[{number}]") from None
    some = [name for name in _LEFT_OUT if any(name in row for row in rows)]
    return {name: [row.get(name, 0) for row in rows] for name in (*_FIELDS, *some)}


def _row(cell: Any) -> dict[str, Any]:
    """The fields of a cell, those of its memory among them."""
    row = {**checked_object(cell)}
    memory = row.pop("memory", None)
    if "memory" in cell:
        row.update(checked_object(memory))
    wanted = {*_FIELDS, *(_MEMORY if "memory" in cell else ())}
    if missing := sorted(wanted - row.keys()):
        raise DamageError(f"has no field {missing[0]!r}")
    if unknown := sorted(row.keys() - wanted - {*_LEFT_OUT}):
        raise DamageError(f"has the unknown field {short_repr(unknown[0])}")
    return row
