"""The cells of a profile as a table, with each name once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Annotated, Any, Final, NamedTuple

from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.files.codec import (
    Codec,
    DamageError,
    checked_object,
    have_type,
    remembering,
    wrong,
)
from torchprof_hooks.profiles.files.fields import Length
from torchprof_hooks.profiles.files.schema import Record, Schema
from torchprof_hooks.profiles.files.table import of_tables
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.totals import Totals

#: Names in a path: calls inside of each other. Python allows some hundred calls of
#: modules, unless it was told otherwise; nothing that reads a profile calls itself.
_DEEPEST: Final = 10_000

#: The field of a table of cells that has the names in their paths.
_NAMES: Final = "names"
#: Fields that have nothing of times.
_NOT_TIMES: Final = {
    *("flops", "used_bytes", "acquired_bytes", "retained_bytes", "peak_bytes"),
    *("traffic_calls", "read_bytes", "written_bytes"),
}


class _Key(NamedTuple):
    """Which cell this is, as a record of its own."""

    path: Annotated[tuple[str, ...], Length(1, _DEEPEST)]
    phase: Phase


#: The fields of a table of cells that say which cells these are.
_KEY_FIELDS: Final = (_NAMES, *_Key._fields)


def without_all_but_times(content: dict[str, Any]) -> None:
    """Take what is not about times out of a table that has not been decoded."""
    for name in _NOT_TIMES & content.keys():
        del content[name]


def of_cells(schema: Schema) -> Codec:
    """Cells as a table, with each name once."""
    keys, totals = _of_keys(schema), of_tables(Record(schema, Totals))

    def decode(content: Any) -> dict[CellKey, Totals]:
        columns = {**checked_object(content)}
        of_keys = {n: columns.pop(n) for n in _KEY_FIELDS if n in columns}
        found, numbers = keys.decode(of_keys), totals.decode(columns)
        if len(found) != len(numbers):
            lengths = {name: len(items) for name, items in columns.items()}
            problem = f"has lists of different lengths: {lengths}, path: {len(found)}"
            raise DamageError(problem)
        return dict(zip(found, numbers, strict=True))

    def encode(value: Mapping[CellKey, Totals]) -> Any:
        return {**keys.encode(value), **totals.encode(value.values())}

    return Codec(encode, decode)


def _of_keys(schema: Schema) -> Codec:
    """Paths and phases of cells. They are remembered: ranks of a run have the same."""
    table = of_tables(Record(schema, _Key))
    texts = schema.of(tuple[str, ...])

    def decode(content: Any) -> tuple[CellKey, ...]:
        columns = {**content}
        if _NAMES in columns:
            try:
                names = texts.decode(columns.pop(_NAMES))
            except DamageError as damage:
                raise damage.inside(f".{_NAMES}") from None
            columns["path"] = _with_names(names, columns.get("path"))
        found: dict[CellKey, None] = {}
        for number, (path, phase) in enumerate(table.decode(columns)):
            if (path, phase) in found:
                problem = "has the path and the phase of another cell"
                raise DamageError(problem, f"[{number}]")
            found[path, phase] = None
        return tuple(found)

    def encode(keys: Iterable[CellKey]) -> Any:
        columns = table.encode(_Key(*key) for key in keys)
        places: dict[str, int] = {}
        columns["path"] = [
            [places.setdefault(name, len(places)) for name in path]
            for path in columns["path"]
        ]
        return {_NAMES: list(places), **columns}

    return remembering(Codec(encode, decode))


def _are_paths(paths: list[Any], count: int) -> bool:
    """Whether all are places of so many names: seen at once, for there are many."""
    if not have_type(list, paths):
        return False
    places = list(chain.from_iterable(paths))
    lengths = set(map(len, paths))
    return (
        have_type(int, places)
        and min(places) >= 0
        and max(places) < count
        and min(lengths) >= 1
        and max(lengths) <= _DEEPEST
    )


def _with_names(names: tuple[str, ...], paths: Any) -> list[Any]:
    """Paths with names in the place of numbers; files of old versions have names."""
    if type(paths) is not list:
        raise wrong(paths, "a list").inside(".path")
    count = len(names)
    if _are_paths(paths, count):
        return [tuple(map(names.__getitem__, path)) for path in paths]
    for number, path in enumerate(paths):
        if type(path) is not list:
            raise wrong(path, "a list of places of names").inside(f"[{number}].path")
        for place in path:
            if type(place) is not int or not 0 <= place < count:
                wanted = f"the place of one of {count} names"
                raise wrong(place, wanted).inside(f"[{number}].path")
    return [[names[place] for place in path] for path in paths]
