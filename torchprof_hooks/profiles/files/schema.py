"""Codecs of records, derived from the annotations of their fields.

What is decoded is checked as a whole: types, ranges, names of fields. So a record is
described in one place, where it is defined; nothing about it is said here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import MISSING, fields, is_dataclass
from functools import cached_property, partial
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from torchprof_hooks.profiles.files.codec import (
    Codec,
    DamageError,
    checked_object,
    have_type,
    of_choices,
    of_lists,
    of_maps,
    of_plain,
    of_whole_numbers,
    or_none,
    short_repr,
)
from torchprof_hooks.profiles.files.fields import (
    DERIVED,
    INLINE,
    OPTIONAL,
    Length,
    Whole,
)


class Field(NamedTuple):
    """default: `MISSING` if a file must have the field.
    record: of an inline field."""

    name: str
    codec: Codec
    record: Record | None
    default: Any


class Record:
    """Codec of a dataclass or NamedTuple: an object with its fields.

    promises: whether it has a method `broken_promise`, which says what is wrong with
        its values taken together, "" if nothing.
    """

    def __init__(self, schema: Schema, kind: Any) -> None:
        self.kind = kind
        self.promises = hasattr(kind, "broken_promise")
        self._schema = schema

    def encode(self, value: Any) -> dict[str, Any]:
        """See `Codec`."""
        content: dict[str, Any] = {}
        for name, codec, _, default in self.fields:
            held = getattr(value, name)
            if default is MISSING or held != default:
                content[name] = codec.encode(held)
        return content

    def decode(self, content: Any) -> Any:
        """See `Codec`."""
        refuse_others(checked_object(content), self._decoders.keys())
        values = {}
        for name, held in content.items():
            try:
                values[name] = self._decoders[name](held)
            except DamageError as damage:
                raise damage.inside(f".{name}") from None
        if missing := self._needed - content.keys():
            raise DamageError(f"has no field {min(missing)!r}")
        made = self.kind(**values)
        if self.promises and (problem := made.broken_promise()):
            raise DamageError(problem)
        return made

    def at_once(self, contents: list[Any]) -> list[Any] | None:
        """See `Codec`: of records that have all of their fields."""
        names = self._decoders.keys()
        if names != self.arguments.keys() or not all(
            type(content) is dict and content.keys() == names for content in contents
        ):
            return None
        columns = []
        for name, codec, _, _ in self.fields:
            column = codec.at_once([content[name] for content in contents])
            if column is None:
                return None
            columns.append(column)
        found = list(map(self.kind, *columns))
        if self.promises and any(made.broken_promise() for made in found):
            return None
        return found

    @cached_property
    def fields(self) -> list[Field]:
        """Those that may be in a file, in order."""
        # Not before it is needed: a record may have records of its own kind inside.
        found = []
        for name, hint in get_type_hints(self.kind, include_extras=True).items():
            marks = hint.__metadata__ if get_origin(hint) is Annotated else ()
            if DERIVED not in marks:
                default = _default(self.kind, name) if OPTIONAL in marks else MISSING
                kind = get_args(hint)[0] if INLINE in marks else None
                record = kind and Record(self._schema, kind)
                found.append(Field(name, self._schema.of(hint), record, default))
        return found

    @cached_property
    def _decoders(self) -> dict[str, Callable[[Any], Any]]:
        return {field.name: field.codec.decode for field in self.fields}

    @cached_property
    def _needed(self) -> set[str]:
        return {field.name for field in self.fields if field.default is MISSING}

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """What makes such a record: all fields in order, with their defaults."""
        names = self.kind.__annotations__
        return {name: _default(self.kind, name) for name in names}


def _of_type(kind: type, wanted: str) -> Codec:
    return of_plain(lambda c: type(c) is kind, wanted, partial(have_type, kind))


def refuse_others(content: Mapping[str, Any], names: Set[str]) -> None:
    """Raise `DamageError` if an object has other fields than these."""
    if unknown := content.keys() - names:
        raise DamageError(f"has the unknown field {short_repr(min(unknown))}")


def _default(kind: Any, name: str) -> Any:
    if not is_dataclass(kind):
        return kind._field_defaults.get(name, MISSING)
    [field] = [each for each in fields(kind) if each.name == name]
    made = field.default_factory
    return field.default if made is MISSING else made()


class Schema:
    """Codecs of all types that are in files.

    special: makes the codecs of types that are not written field by field.
    """

    def __init__(self, special: Mapping[Any, Callable[[Schema], Codec]]) -> None:
        self._special = special
        self._codecs: dict[Any, Codec] = {
            str: _of_type(str, "a text"),
            bool: _of_type(bool, "true or false"),
        }

    def of(self, hint: Any) -> Codec:
        """The codec of a type.

        Raises:
            TypeError: the type cannot be in a file. For whole numbers, the annotation
                has to say how large they may be.
        """
        if hint not in self._codecs:
            self._codecs[hint] = self._make(hint)
        return self._codecs[hint]

    def _make(self, hint: Any) -> Codec:
        if hint in self._special:
            return self._special[hint](self)
        origin = get_origin(hint)  # through which a type with marks shows its own names
        if origin is None and (is_dataclass(hint) or hasattr(hint, "_fields")):
            return self.record(hint)
        return self._generic(hint, origin, get_args(hint))

    def record(self, kind: Any) -> Codec:
        """The codec of a record, field by field."""
        record = Record(self, kind)
        return Codec(record.encode, record.decode, record.at_once)

    def _generic(self, hint: Any, origin: Any, inner: tuple[Any, ...]) -> Codec:
        if origin is Annotated:
            return self._annotated(*inner)
        if origin is Literal:
            return of_choices(inner)
        if origin in (Union, UnionType) and inner[1:] == (NoneType,):
            return or_none(self.of(inner[0]))
        if origin is tuple and inner[1:] == (...,):
            return of_lists(self.of(inner[0]))
        if origin is Mapping and inner[0] is str:
            return of_maps(self.of(inner[1]))
        raise TypeError(f"{hint} cannot be in a file")

    def _annotated(self, inner: Any, *marks: Any) -> Codec:
        for mark in marks:
            if isinstance(mark, Whole):
                return of_whole_numbers(mark)
            if isinstance(mark, Length):
                return of_lists(self.of(get_args(inner)[0]), mark)
        return self.of(inner)
