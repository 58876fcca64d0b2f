"""Codecs of records, derived from the annotations of their fields.

What is decoded is checked as a whole: types, ranges, names of fields. So a record is
described in one place, where it is defined; nothing about it is said here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cached_property
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from torchprof_hooks.profiles.fields import DERIVED, INLINE, OPTIONAL, Length, Whole
from torchprof_hooks.profiles.files.codec import (
    Choice,
    Codec,
    DamageError,
    ListOf,
    MapOf,
    Number,
    OrNone,
    Plain,
    checked_object,
    short_repr,
)

_PLAIN: Final[Mapping[Any, Codec]] = {
    str: Plain(str, "a text"),
    bool: Plain(bool, "true or false"),
}


class _Field(NamedTuple):
    """marks: see `fields`. default: `MISSING` if a file must have the field."""

    name: str
    codec: Codec
    is_inline: bool
    default: Any


class Record:
    """The codec of a dataclass or NamedTuple: an object with its fields.

    What these promise each other, the record knows itself: if it has a method
    `broken_promise`, that says in words what is not kept, "" if all is.
    """

    def __init__(self, schema: Schema, kind: Any) -> None:
        self._kind = kind
        self._schema = schema

    @cached_property
    def names(self) -> set[str]:
        """What an object may have."""
        names = set[str]()
        for field in self._fields:
            inline = field.codec if field.is_inline else None
            names |= inline.names if isinstance(inline, Record) else {field.name}
        return names

    def encode(self, value: Any) -> dict[str, Any]:
        """See `Codec.encode`."""
        content: dict[str, Any] = {}
        for name, codec, is_inline, default in self._fields:
            held = getattr(value, name)
            if is_inline:
                content.update(codec.encode(held))
            elif default is MISSING or held != default:
                content[name] = codec.encode(held)
        return content

    def decode(self, content: Any) -> Any:
        """See `Codec.decode`."""
        unknown = checked_object(content).keys() - self.names
        if unknown:
            raise DamageError(f"has the unknown field {short_repr(min(unknown))}")
        return self.decode_known(content)

    def decode_known(self, content: dict[str, Any]) -> Any:
        """The value, of the fields that are known."""
        values = {}
        for name, codec, is_inline, default in self._fields:
            if is_inline and isinstance(codec, Record):
                values[name] = codec.decode_known(content)
            elif name in content:
                try:
                    values[name] = codec.decode(content[name])
                except DamageError as damage:
                    raise damage.inside(f".{name}") from None
            elif default is MISSING:
                raise DamageError(f"has no field {name!r}")
        value = self._kind(**values)
        if hasattr(value, "broken_promise") and (problem := value.broken_promise()):
            raise DamageError(problem)
        return value

    @cached_property
    def _fields(self) -> list[_Field]:
        # Not before it is needed: a record may have records of its own kind inside.
        found = []
        for name, hint in get_type_hints(self._kind, include_extras=True).items():
            marks = hint.__metadata__ if get_origin(hint) is Annotated else ()
            if DERIVED not in marks:
                default = _default(self._kind, name) if OPTIONAL in marks else MISSING
                codec = self._schema.of(hint)
                found.append(_Field(name, codec, INLINE in marks, default))
        return found


class Schema:
    """Codecs of all types that are in files.

    special: what makes the codecs of types that are written otherwise than field by
        field.
    """

    def __init__(self, special: Mapping[Any, Callable[[Schema], Codec]]) -> None:
        self._special = special
        self._codecs: dict[Any, Codec] = {}

    def of(self, hint: Any) -> Codec:
        """The codec of a type.

        Raises:
            TypeError: nothing is known of it. Of whole numbers, it must be said how
                large they may be.
        """
        if hint not in self._codecs:
            self._codecs[hint] = self._make(hint)
        return self._codecs[hint]

    def _make(self, hint: Any) -> Codec:
        if hint in self._special:
            return self._special[hint](self)
        if hint in _PLAIN:
            return _PLAIN[hint]
        origin = get_origin(hint)  # through which a type with marks shows its own names
        if origin is None and (is_dataclass(hint) or hasattr(hint, "_fields")):
            return Record(self, hint)
        return self._generic(hint, origin, get_args(hint))

    def _generic(self, hint: Any, origin: Any, inner: tuple[Any, ...]) -> Codec:
        if origin is Annotated:
            return self._annotated(*inner)
        if origin is Literal:
            return Choice(inner)
        if origin in (Union, UnionType) and inner[1:] == (NoneType,):
            return OrNone(self.of(inner[0]))
        if origin is tuple and inner[1:] == (...,):
            return ListOf(self.of(inner[0]))
        if origin is Mapping and inner[0] is str:
            return MapOf(self.of(inner[1]))
        raise TypeError(f"{hint} cannot be in a file")

    def _annotated(self, inner: Any, *marks: Any) -> Codec:
        for mark in marks:
            if isinstance(mark, Whole):
                return Number.of(mark)
            if isinstance(mark, Length):
                return ListOf(self.of(get_args(inner)[0]), mark)
        return self.of(inner)


def _default(kind: Any, name: str) -> Any:
    if not is_dataclass(kind):
        return kind._field_defaults[name]
    [field] = [each for each in fields(kind) if each.name == name]
    made = field.default_factory
    return field.default if made is MISSING else made()
