"""Values as plain JSON types and back, checked on the way back."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import (
    Any,
    Final,
    NamedTuple,
    Protocol,
)

from torchprof_hooks.profiles.fields import (
    Length,
    Whole,
)

_REPR: Final = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 60


def short_repr(value: Any) -> str:
    """What a file has, cut to what a message can hold."""
    return _REPR.repr(value)


class DamageError(ValueError):
    """Something that cannot be in a file, and where: "cells[3].self_ns is -5"."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.place = ""

    def inside(self, part: str) -> DamageError:
        """The same, seen from what is around it."""
        self.place = part + self.place
        return self

    def __str__(self) -> str:
        return f"{self.place.removeprefix('.') or 'it'} {self.problem}"


def wrong(value: Any, wanted: str) -> DamageError:
    """A value that is not what it has to be."""
    return DamageError(f"is {short_repr(value)}; it has to be {wanted}")


class RepeatedFields(dict[str, Any]):
    """A JSON object in which a field, `repeated`, is given more than once."""

    repeated: str

    @classmethod
    def dict_of(cls, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """A JSON object of its fields, of this class if one is repeated."""
        content = dict(pairs)
        if len(content) == len(pairs):
            return content
        names = [name for name, _ in pairs]
        marked = cls(content)
        marked.repeated = next(name for name in names if names.count(name) > 1)
        return marked


class Codec(Protocol):
    """Turns values of one type into JSON types, and back."""

    def encode(self, value: Any) -> Any:
        """The content of a file."""

    def decode(self, content: Any) -> Any:
        """The value; raises `DamageError` if there is none with this content."""


class Number(NamedTuple):
    """A whole number from `least` to before `end`."""

    least: int
    end: int
    wanted: str

    @classmethod
    def of(cls, allowed: Whole) -> Number:
        bits, is_signed = allowed
        least, low = (-(2**bits), f"-2^{bits}") if is_signed else (0, "0")
        return cls(least, 2**bits, f"a whole number from {low} to 2^{bits}-1")

    def encode(self, value: int) -> int:
        return value

    def decode(self, content: Any) -> int:
        if type(content) is not int or not self.least <= content < self.end:
            raise wrong(content, self.wanted)
        return content


class Plain(NamedTuple):
    """What JSON has a type for."""

    kind: type
    wanted: str

    def encode(self, value: Any) -> Any:
        return value

    def decode(self, content: Any) -> Any:
        if type(content) is not self.kind:
            raise wrong(content, self.wanted)
        return content


class Choice(NamedTuple):
    """One of a few texts."""

    choices: tuple[str, ...]

    def encode(self, value: str) -> str:
        return value

    def decode(self, content: Any) -> str:
        if not isinstance(content, str) or content not in self.choices:
            raise wrong(content, f"one of {', '.join(map(repr, self.choices))}")
        return content


class OrNone(NamedTuple):
    """A value that may be missing: null."""

    inner: Codec

    def encode(self, value: Any) -> Any:
        return None if value is None else self.inner.encode(value)

    def decode(self, content: Any) -> Any:
        return None if content is None else self.inner.decode(content)


class ListOf(NamedTuple):
    """A tuple of values of one type."""

    item: Codec
    length: Length | None = None

    def encode(self, value: tuple[Any, ...]) -> list[Any]:
        return [self.item.encode(each) for each in value]

    def decode(self, content: Any) -> tuple[Any, ...]:
        if type(content) is not list:
            raise wrong(content, "a list")
        if self.length and not self.length.least <= len(content) <= self.length.most:
            least, most = self.length
            count = f"{least} to {most}"
            raise DamageError(f"has {len(content)} items; it has to have {count}")
        decoded, decode = [], self.item.decode
        try:
            for each in content:
                decoded.append(decode(each))
        except DamageError as damage:
            raise damage.inside(f"[{len(decoded)}]") from None
        return tuple(decoded)


class MapOf(NamedTuple):
    """Values of one type by name."""

    item: Codec

    def encode(self, value: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.item.encode(each) for name, each in value.items()}

    def decode(self, content: Any) -> dict[str, Any]:
        decoded = {}
        for name, each in checked_object(content).items():
            try:
                decoded[name] = self.item.decode(each)
            except DamageError as damage:
                raise damage.inside(f"[{short_repr(name)}]") from None
        return decoded


def checked_object(content: Any) -> dict[str, Any]:
    """A JSON object, or `DamageError`."""
    if type(content) is RepeatedFields:
        name = short_repr(content.repeated)
        raise DamageError(f"has the field {name} more than once")
    if type(content) is not dict:
        raise wrong(content, "an object with fields")
    return content
