"""Profiles as JSON files.

A file is::

    {"format": "torchprof_hooks profile", "version": 7,
     "parts": [{"name": "start-up", "wall_ns": ..., "steps": 1, "step_times": {...},
                "cells": {"names": [name, ...], "path": [[0, 1], ...], "phase": [...],
                          "calls": [...], "self_ns": [...], ..., "used_bytes": [...]}},
               {"name": "loop", ...}],
     "modules": {name: {"class_name": ..., "kind": ..., "shapes": [[32, 64]], ...}},
     "devices": [...], "memory": {...}, "program": {...}, "provenance": [{...}], ...}

The fields are those of `ProfileData` and of the records in it; fields that have their
default are left out. Cells are stored as columns: each field of `Totals`, and of the
memory in it, is a list with one number per cell; the numbers in a path are positions in
"names". A field that is added to a record is in files, too, without more code.

Files of other versions are not read.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from itertools import repeat
from math import isfinite
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

from torchprof_hooks.files.collector import without_collections
from torchprof_hooks.files.writing import replaced_file
from torchprof_hooks.profiles.cells import CellKey, Cells, sum_of_own_ns
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.errors import ProfileFileError
from torchprof_hooks.profiles.memory import NO_MEMORY, MemoryTotals
from torchprof_hooks.profiles.phases import PHASES
from torchprof_hooks.profiles.provenance import Processes
from torchprof_hooks.profiles.totals import DERIVED, Totals

FORMAT: Final = "torchprof_hooks profile"
VERSION: Final = 7

#: The exceptions that building a value from damaged content raises.
_DAMAGES: Final = (ArithmeticError, LookupError, RecursionError, TypeError, ValueError)
#: A place in a file: names of fields and positions in lists, the outermost first.
JsonPath = list[object]
#: Builds a value from JSON's; if that fails, it inserts where in front of the place.
_Builder = Callable[[Any, JsonPath], Any]

_KEYS: Final = ("names", "path", "phase")
#: The columns of cells: the fields of `Totals`, and those of the memory in it.
_NUMBERS: Final = tuple(
    each.name for each in fields(Totals) if each.name not in {*DERIVED, "memory"}
)
_BYTES: Final = tuple(each.name for each in fields(MemoryTotals))
#: Whole numbers that do not say what range they have.
_USUAL: Final = (0, 1 << 63)


def save(profile: ProfileData, path: str | Path) -> None:
    """See `Profile.save`."""
    content = {"format": FORMAT, "version": VERSION, **_plain(profile)}
    with replaced_file(path) as file:
        file.write(json.dumps(content, separators=(",", ":")))


def load(path: str | Path) -> ProfileData:
    """See `Profile.load`."""
    found: ProfileData = _read(path, _checked_profile)
    return found


def read_runs(path: Path) -> list[ProfileData]:
    """The profile in a file; or those in a folder, one of each run, by their names.

    Raises:
        ProfileFileError: a file is no profile, or the folder has no ``*.json``.
        OSError: it cannot be read.
    """
    if not path.is_dir():
        return [load(path)]
    paths = sorted(path.glob("*.json"))
    if not paths:
        raise ProfileFileError(
            f"{path} has no profiles: it needs a file *.json for each run"
        )
    return [load(each) for each in paths]


def provenance_of(path: str | Path) -> Processes:
    """The processes that measured the profile in a file; () if it does not say. The
    rest of the file is not checked.

    Raises: as `load`.
    """

    def processes(content: dict[str, Any], place: JsonPath) -> Processes:
        found: Processes = _build(Processes, content.get("provenance", []), place)
        return found

    found: Processes = _read(path, processes)
    return found


def _read(path: str | Path, make: Callable[[dict[str, Any], JsonPath], Any]) -> Any:
    """Read a file, and return what `make` makes of its content.

    Raises:
        ProfileFileError: it is not a profile of this version, or is damaged.
        OSError: it cannot be read.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError also if it is no UTF-8
        if Path(path).suffix == ".py":
            raise ProfileFileError(
                f"{path} is a program, and no profile: measure it with "
                f"python -m torchprof_hooks --save profile.json {path}"
            ) from None
        raise ProfileFileError(f"{path} is not a whole JSON file: {error}") from error
    if type(content) is not dict or content.pop("format", None) != FORMAT:
        raise ProfileFileError(f"{path} is not a profile of torchprof_hooks")
    version = content.pop("version", None)
    if version != VERSION:
        raise ProfileFileError(
            f"{path} has version {version!r}, but this release reads version {VERSION} "
            "alone: measure again, or use the release that has written it"
        )
    place: JsonPath = []
    try:
        with without_collections():
            return make(content, place)
    except _DAMAGES as e:
        where = ".".join(map(str, place)) or "it"
        reason = f"has no {e}" if isinstance(e, KeyError) else str(e)
        raise ProfileFileError(f"{path} is damaged: {where}: {reason}") from None


def _checked_profile(content: dict[str, Any], place: JsonPath) -> ProfileData:
    found: ProfileData = _build(ProfileData, content, place)
    for part in found.parts:
        unknown = {name for path, _ in part.cells for name in path} - {*found.modules}
        if unknown:
            raise ValueError(f"no module is called {min(unknown)!r}, but cells are")
        booked_ns = sum_of_own_ns(part.cells)
        if booked_ns != part.wall_ns:
            raise ValueError(
                f"own times of the {part.name} add up to {booked_ns} ns, but wall_ns "
                f"is {part.wall_ns}"
            )
    return found


# Writing


def _plain(value: Any) -> Any:
    """A value as JSON can store it."""
    if is_dataclass(value) or hasattr(value, "_fields"):
        kind: Any = type(value)
        held = ((n, getattr(value, n), d) for n, d in _defaults(kind).items())
        return {n: _plain_field(n, v) for n, v, default in held if v != default}
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value


def _plain_field(name: str, value: Any) -> Any:
    return _plain_cells(value) if name == "cells" else _plain(value)


@cache
def _defaults(kind: type) -> dict[str, Any]:
    """The fields of a record, with their defaults; `MISSING` for those without one."""
    if not is_dataclass(kind):
        known = kind._field_defaults  # type: ignore[attr-defined]
        return {name: known.get(name, MISSING) for name in kind._fields}  # type: ignore[attr-defined]
    return {
        each.name: each.default
        if each.default_factory is MISSING
        else each.default_factory()
        for each in fields(kind)
    }


def _plain_cells(cells: Cells) -> dict[str, list[Any]]:
    places: dict[str, int] = {}
    paths = [[places.setdefault(n, len(places)) for n in path] for path, _ in cells]
    every = cells.values()
    columns = {name: [getattr(t, name) for t in every] for name in _NUMBERS}
    columns |= {name: [getattr(t.memory, name) for t in every] for name in _BYTES}
    keys: dict[str, list[Any]] = {"names": [*places], "path": paths}
    keys["phase"] = [phase for _, phase in cells]
    return keys | {name: column for name, column in columns.items() if any(column)}


# Reading


def _build(hint: Any, content: Any, place: JsonPath) -> Any:
    return _builder(hint)(content, place)


@cache
def _builder(hint: Any) -> _Builder:  # noqa: PLR0911 - one for each kind of type
    """The builder for values of a type."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint == Mapping[CellKey, Totals]:
        return _cells
    if hint in (int, float) or origin is Annotated:
        return partial(_number, hint)
    if hint in (str, bool):
        return partial(_scalar, hint)
    if origin is Literal:
        return partial(_choice, frozenset(inner))
    if NoneType in inner:
        build = _builder(next(each for each in inner if each is not NoneType))
        return lambda content, place: None if content is None else build(content, place)
    if origin is tuple:
        return partial(_items, _builder(inner[0]))
    if origin is not None:  # a mapping by names
        return partial(_by_name, _builder(inner[1]))
    hints = get_type_hints(hint, include_extras=True).items()
    return partial(_record, hint, {name: _builder(each) for name, each in hints})


def _scalar(kind: type, content: Any, place: JsonPath) -> Any:
    if type(content) is not kind:
        raise TypeError(f"{reprlib.repr(content)} is not of type {kind.__name__}")
    return content


def _number(hint: Any, content: Any, place: JsonPath) -> Any:
    """A number of a type: a float, or a whole number in a range."""
    if hint is float:
        if type(content) not in (int, float) or not isfinite(content):
            raise TypeError(f"{reprlib.repr(content)} is not a finite number")
        return float(content)
    kind, least, end = get_args(hint) or (int, *_USUAL)
    _scalar(kind, content, place)
    if not least <= content < end:
        raise ValueError(f"{reprlib.repr(content)} is out of range")
    return content


def _choice(choices: frozenset[str], content: Any, place: JsonPath) -> Any:
    if content not in choices:
        raise ValueError(f"{reprlib.repr(content)} is none of {sorted(choices)}")
    return content


def _items(build: _Builder, content: Any, place: JsonPath) -> tuple[Any, ...]:
    every, found = _checked(list, content), list[Any]()
    try:
        for each in every:
            found.append(build(each, place))
    except _DAMAGES:
        place.insert(0, len(found))
        raise
    return tuple(found)


def _by_name(build: _Builder, content: Any, place: JsonPath) -> dict[str, Any]:
    return _named(lambda _: build, content, place)


def _record(
    kind: Any, builders: Mapping[str, _Builder], content: Any, place: JsonPath
) -> Any:
    return kind(**_named(builders.__getitem__, content, place))


def _named(
    builder_of: Callable[[str], _Builder], content: Any, place: JsonPath
) -> dict[str, Any]:
    every, found, name = _checked(dict, content), dict[str, Any](), ""
    try:
        for name, each in every.items():
            found[name] = builder_of(name)(each, place)
    except _DAMAGES:
        place.insert(0, name)
        raise
    return found


def _checked(kind: type, content: Any) -> Any:
    if type(content) is not kind:
        raise TypeError(f"{reprlib.repr(content)} is not a JSON {kind.__name__}")
    return content


def _column(hint: Any, content: Any, place: JsonPath) -> list[Any]:
    """A list of numbers, or, if no type is given, of anything."""
    column: list[Any] = _checked(list, content)
    if hint is not None:
        # The extremes of whole numbers will do.
        is_whole = {*map(type, column)} == {int}
        for each in (min(column), max(column)) if is_whole else column:
            _number(hint, each, place)
    return column


@cache
def _columns() -> dict[str, _Builder]:
    """The builders for the columns of cells."""
    hints: dict[str, Any] = dict.fromkeys(_KEYS)
    for kind, names in ((Totals, _NUMBERS), (MemoryTotals, _BYTES)):
        known = get_type_hints(kind, include_extras=True)
        hints |= {name: known[name] for name in names}
    return {name: partial(_column, hint) for name, hint in hints.items()}


def _cells(content: Any, place: JsonPath) -> dict[CellKey, Totals]:
    columns = _named(_columns().__getitem__, content, place)
    names, paths, phases = map(columns.pop, _KEYS)
    if not PHASES.keys() >= {*phases}:
        raise ValueError(f"{min({*phases} - PHASES.keys())!r} is no phase")
    if not all(paths) or min(map(min, paths), default=0) < 0:
        raise ValueError("a path has no names, or names before the first")
    keys = [
        (tuple(map(names.__getitem__, path)), p)
        for path, p in zip(paths, phases, strict=True)
    ]
    for name, column in columns.items():
        if len(column) != len(keys):
            raise ValueError(f"{name} has not a number for each of {len(keys)} cells")
    found = dict(zip(keys, _totals(columns, len(keys)), strict=True))
    if len(found) != len(keys):
        raise ValueError("two cells have the same path and phase")
    return found


def _totals(columns: Mapping[str, list[int]], count: int) -> Iterable[Totals]:
    memory: Iterable[MemoryTotals] = repeat(NO_MEMORY, count)
    if not columns.keys().isdisjoint(_BYTES):
        each = (columns.get(name, repeat(0, count)) for name in _BYTES)
        memory = (
            MemoryTotals(*sizes) if any(sizes) else NO_MEMORY
            for sizes in zip(*each, strict=True)
        )
    held: dict[str, Iterable[Any]] = {**columns, "memory": memory}
    default = Totals()
    return map(
        Totals,
        *(
            held.get(f.name) or repeat(getattr(default, f.name), count)
            for f in fields(Totals)
        ),
    )
