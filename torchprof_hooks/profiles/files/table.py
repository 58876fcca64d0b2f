"""Many records of one kind as a table: an object with a list for each field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import MISSING
from itertools import repeat
from typing import Any

from torchprof_hooks.profiles.files.codec import (
    Codec,
    DamageError,
    checked_object,
    wrong,
)
from torchprof_hooks.profiles.files.schema import Field, Record, refuse_others


def of_tables(record: Record) -> Codec:
    """For records of one kind, in their order.

    What is in a record inside (`INLINE`) are columns, too. A column whose field is
    optional is left out where all have the default.
    """
    columns = list(_columns(record))
    names = {field.name for field in columns}

    def encode(values: Any) -> dict[str, list[Any]]:
        found = dict(_lists(record, list(values)))
        return {
            field.name: list(map(field.codec.encode, found[field.name]))
            for field in columns
            if field.default is MISSING or set(found[field.name]) - {field.default}
        }

    def decode(content: Any) -> list[Any]:
        refuse_others(checked_object(content), names)
        lists: dict[str, list[Any]] = {}
        for field in columns:
            if field.name in content:
                lists[field.name] = _decoded(field, content[field.name])
        lengths = {name: len(items) for name, items in lists.items()}
        if len(set(lengths.values())) > 1:
            raise DamageError(f"has lists of different lengths: {lengths}")
        return _records(record, lists, next(iter(lengths.values()), 0))

    return Codec(encode, decode)


def _columns(record: Record) -> Iterator[Field]:
    for field in record.fields:
        yield from _columns(field.record) if field.record else [field]


def _lists(record: Record, values: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """What the records hold, by column."""
    for field in record.fields:
        held = [getattr(value, field.name) for value in values]
        yield from _lists(field.record, held) if field.record else [(field.name, held)]


def _decoded(field: Field, items: Any) -> list[Any]:
    if type(items) is not list:
        raise wrong(items, "a list").inside(f".{field.name}")
    values = field.codec.at_once(items)
    if values is not None:
        return values
    decoded: list[Any] = []
    try:
        for item in items:
            decoded.append(field.codec.decode(item))
    except DamageError as damage:
        raise damage.inside(f"[{len(decoded)}].{field.name}") from None
    return decoded


def _is_in(record: Record, lists: dict[str, list[Any]]) -> bool:
    return any(field.name in lists for field in _columns(record))


def _records(record: Record, lists: dict[str, list[Any]], count: int) -> list[Any]:
    """So many records of the values in these columns."""
    held: dict[str, Iterable[Any]] = {}
    for name, _, inner, default in record.fields:
        if inner and (default is MISSING or _is_in(inner, lists)):
            held[name] = _records(inner, lists, count)
        elif name in lists:
            held[name] = lists[name]
        elif default is MISSING:
            raise DamageError(f"has no field {name!r}")
    columns = (
        held.get(name) or repeat(default, count)
        for name, default in record.arguments.items()
    )
    found = list(map(record.kind, *columns))
    for number, made in enumerate(found if record.promises else ()):
        if problem := made.broken_promise():
            raise DamageError(problem, f"[{number}]")
    return found
