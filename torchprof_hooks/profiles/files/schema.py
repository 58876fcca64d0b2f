"""Codecs of records, derived from the annotations of their fields.

What is decoded is checked as a whole: types, ranges, names of fields. So a record is
described in one place, where it is defined; nothing about it is said here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import MISSING, is_dataclass
from functools import cached_property
from inspect import signature
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
    PlainCodec,
    checked_object,
    of_choices,
    of_lists,
    of_maps,
    of_numbers,
    or_none,
    short_repr,
)
from torchprof_hooks.profiles.files.fields import DERIVED, OPTIONAL, Whole


class Field(NamedTuple):
    """default: `MISSING` if a file must have the field."""

    name: str
    codec: Codec
    default: Any


class Record(Codec):
    """Codec of a dataclass or NamedTuple: an object with its fields.

    If the kind has a method `broken_promise`, that says what is wrong with its values
    taken together, "" if nothing.
    """

    def __init__(self, schema: Schema, kind: Any) -> None:
        super().__init__(self._encoded, self._decoded)
        self.kind = kind
        self._schema = schema
        self._has_promise = hasattr(kind, "broken_promise")

    @cached_property
    def fields(self) -> list[Field]:
        """The fields that may be in a file, in order."""
        # Not before it is needed: a record may have records of its own kind inside.
        found = []
        arguments = signature(self.kind).parameters
        for name, hint in get_type_hints(self.kind, include_extras=True).items():
            marks = hint.__metadata__ if get_origin(hint) is Annotated else ()
            if DERIVED not in marks:
                default = arguments[name].default if OPTIONAL in marks else MISSING
                found.append(Field(name, self._schema.of(hint), default))
        return found

    @cached_property
    def names(self) -> Set[str]:
        """The names of the fields."""
        return {field.name for field in self.fields}

    def _encoded(self, value: Any) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for name, codec, default in self.fields:
            held = getattr(value, name)
            if default is MISSING or held != default:
                content[name] = codec.encode(held)
        return content

    def _decoded(self, content: Any) -> Any:
        refuse_others(checked_object(content), self.names)
        values = {}
        for name, codec, default in self.fields:
            if name in content:
                try:
                    values[name] = codec.decode(content[name])
                except DamageError as damage:
                    raise damage.inside(f".{name}") from None
            elif default is MISSING:
                raise DamageError(f"has no field {name!r}")
        found = self.kind(**values)  # other fields have their default
        self.check(found)
        return found

    def check(self, found: Any) -> None:
        """Raise `DamageError` if the values of a record are wrong, taken together."""
        if self._has_promise and (problem := found.broken_promise()):
            raise DamageError(problem)


def refuse_others(content: Mapping[str, Any], names: Set[str]) -> None:
    """Raise `DamageError` if an object has other fields than these."""
    if unknown := content.keys() - names:
        raise DamageError(f"has the unknown field {short_repr(min(unknown))}")


class Schema:
    """Codecs of all types that are in files.

    special: makes the codecs of types that are not written field by field.
    """

    def __init__(self, special: Mapping[Any, Callable[[Schema], Codec]]) -> None:
        self._special = special
        self._codecs: dict[Any, Codec] = {
            str: PlainCodec(str, lambda _: True, "a text"),
            bool: PlainCodec(bool, lambda _: True, "true or false"),
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
        origin = get_origin(hint)  # `Annotated` shows the attributes of its type, too
        if origin is None and (is_dataclass(hint) or hasattr(hint, "_fields")):
            return Record(self, hint)
        return self._generic(hint, origin, get_args(hint))

    def _generic(self, hint: Any, origin: Any, inner: tuple[Any, ...]) -> Codec:
        if origin is Annotated:
            wholes = [mark for mark in inner if isinstance(mark, Whole)]
            return _of_whole(wholes[0]) if wholes else self.of(inner[0])
        if origin is Literal:
            return of_choices(inner)
        if origin in (Union, UnionType) and inner[1:] == (NoneType,):
            return or_none(self.of(inner[0]))
        if origin is tuple and inner[1:] == (...,):
            return of_lists(self.of(inner[0]))
        if origin is Mapping and inner[0] is str:
            return of_maps(self.of(inner[1]))
        raise TypeError(f"{hint} cannot be in a file")


def _of_whole(allowed: Whole) -> Codec:
    low = f"-2^{allowed.bits}" if allowed.is_signed else "0"
    wanted = f"a whole number from {low} to 2^{allowed.bits}-1"
    end = 2**allowed.bits
    return of_numbers(-end if allowed.is_signed else 0, end, wanted)
