"""The cells of a profile as a table: a JSON object with one list for each field of the
`Totals`, including those of records in it; and with each name once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING
from inspect import signature
from itertools import repeat
from typing import Any, Final

from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.files.codec import (
    Codec,
    DamageError,
    checked_object,
    of_lists,
    of_numbers,
    remembering,
    wrong,
)
from torchprof_hooks.profiles.files.schema import Field, Record, Schema, refuse_others
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.totals import Totals

#: The most names in a path, for calls inside of each other. Python's limit allows some
#: hundred calls of modules, unless it is raised; no reader of profiles is recursive.
_DEEPEST: Final = 10_000

#: The field that has the names in paths.
_NAMES: Final = "names"
#: The fields that say which cells these are.
_KEY_FIELDS: Final = (_NAMES, "path", "phase")


def of_cells(schema: Schema) -> Codec:
    """Cells as a table."""
    keys, totals = _of_keys(schema), Record(schema, Totals)

    def decode(content: Any) -> dict[CellKey, Totals]:
        columns = {**checked_object(content)}
        of_keys = {n: columns.pop(n) for n in _KEY_FIELDS if n in columns}
        found, numbers = keys.decode(of_keys), _totals(totals, columns)
        if len(found) != len(numbers):
            lengths = {name: len(items) for name, items in columns.items()}
            problem = f"has lists of different lengths: {lengths}, path: {len(found)}"
            raise DamageError(problem)
        return dict(zip(found, numbers, strict=True))

    def encode(value: Mapping[CellKey, Totals]) -> Any:
        return {**keys.encode(value), **dict(_columns(totals, list(value.values())))}

    return Codec(encode, decode)


def _columns(record: Record, values: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """The columns of records, without optional fields that have their default in all
    records."""
    for name, codec, default in record.fields:
        held = [getattr(value, name) for value in values]
        if isinstance(codec, Record):
            yield from _columns(codec, held)
        elif default is MISSING or set(held) - {default}:
            yield name, list(map(codec.encode, held))


def _totals(record: Record, content: dict[str, Any]) -> list[Any]:
    inner = {f.name: f.codec for f in record.fields if isinstance(f.codec, Record)}
    columns = [field for field in record.fields if field.name not in inner]
    for each in inner.values():
        columns += each.fields
    refuse_others(content, {field.name for field in columns})
    lists, count = _lists(columns, content)
    for name, each in inner.items():
        of_inner = {n: lists.pop(n) for n in each.names & lists.keys()}
        if of_inner:
            lists[name] = _records(each, of_inner, count)
    return _records(record, lists, count)


def _records(record: Record, lists: dict[str, list[Any]], count: int) -> list[Any]:
    """Records of lists of the values of their fields; the others have their default."""
    default = record.kind()
    columns = (
        lists[name] if name in lists else repeat(getattr(default, name), count)
        for name in signature(record.kind).parameters
    )
    found = list(map(record.kind, *columns))
    for number, each in enumerate(found):
        try:
            record.check(each)
        except DamageError as damage:
            raise damage.inside(f"[{number}]") from None
    return found


def _lists(
    columns: Iterable[Field], content: Mapping[str, Any]
) -> tuple[dict[str, list[Any]], int]:
    """What is in the columns, by name, and how many lines they have."""
    lists: dict[str, list[Any]] = {}
    for name, codec, default in columns:
        if name in content:
            lists[name] = _list(name, codec, content[name])
        elif default is MISSING:
            raise DamageError(f"has no field {name!r}")
    lengths = {name: len(items) for name, items in lists.items()}
    if len(set(lengths.values())) > 1:
        raise DamageError(f"has lists of different lengths: {lengths}")
    return lists, next(iter(lengths.values()))


def _list(name: str, codec: Codec, content: Any) -> list[Any]:
    if type(content) is not list:
        raise wrong(content, "a list").inside(f".{name}")
    try:
        return codec.decode_all(content)
    except DamageError as damage:
        line, _, inside = damage.place.partition("]")
        raise DamageError(damage.problem, f"{line}].{name}{inside}") from None


def _of_keys(schema: Schema) -> Codec:
    """Paths and phases of cells. They are remembered: ranks of a run have the same."""
    texts, phases = schema.of(tuple[str, ...]), schema.of(Phase)

    def decode(content: Any) -> tuple[CellKey, ...]:
        paths = texts  # as files of old versions have them
        if _NAMES in content:
            try:
                paths = _of_places(texts.decode(content[_NAMES]))
            except DamageError as damage:
                raise damage.inside(f".{_NAMES}") from None
        columns = (Field("path", paths, MISSING), Field("phase", phases, MISSING))
        lists, _ = _lists(columns, content)
        return _checked_keys(zip(*lists.values(), strict=True))

    def encode(keys: Iterable[CellKey]) -> Any:
        places: dict[str, int] = {}
        columns: dict[str, list[Any]] = {"path": [], "phase": []}
        for path, phase in keys:
            numbers = [places.setdefault(name, len(places)) for name in path]
            columns["path"].append(numbers)
            columns["phase"].append(phase)
        return {_NAMES: list(places), **columns}

    return remembering(Codec(encode, decode))


def _checked_keys(keys: Iterable[CellKey]) -> tuple[CellKey, ...]:
    found: dict[CellKey, None] = {}
    for number, key in enumerate(keys):
        if not 1 <= len(key[0]) <= _DEEPEST:
            problem = f"has {len(key[0])} items; it has to have 1 to {_DEEPEST}"
            raise DamageError(problem, f"[{number}].path")
        if key in found:
            problem = "has the path and the phase of another cell"
            raise DamageError(problem, f"[{number}]")
        found[key] = None
    return tuple(found)


def _of_places(names: tuple[str, ...]) -> Codec:
    """For paths that have the positions of `names` instead of the names."""
    wanted = f"the place of one of {len(names)} names"
    places = of_lists(of_numbers(0, len(names), wanted))
    return Codec(
        places.encode,
        lambda path: tuple(map(names.__getitem__, places.decode(path))),
    )
