"""Values as plain JSON types and back, checked on the way back."""

from __future__ import annotations

import marshal
import reprlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from torchprof_hooks.profiles.files.fields import Length, Whole

_REPR: Final = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 60
#: A value as text, cut to the length that a message can hold.
short_repr: Final = _REPR.repr


class DamageError(ValueError):
    """A value that a file must not have, and its place: "cells[3].self_ns is -5"."""

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.place = place

    def inside(self, part: str) -> DamageError:
        """The same error with the place of what contains the value."""
        return DamageError(self.problem, part + self.place)

    def __str__(self) -> str:
        return f"{self.place.removeprefix('.') or 'it'} {self.problem}"


def wrong(value: Any, wanted: str) -> DamageError:
    """An error for a value that is not what it has to be."""
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


def checked_object(content: Any) -> dict[str, Any]:
    """A JSON object, or `DamageError`."""
    if type(content) is RepeatedFields:
        name = short_repr(content.repeated)
        raise DamageError(f"has the field {name} more than once")
    if type(content) is not dict:
        raise wrong(content, "an object with fields")
    return content


def _never(contents: list[Any]) -> None:
    """Nothing is known of many at once."""


class Codec(NamedTuple):
    """Turns values of one type into JSON types, and back; `decode` raises `DamageError`
    if no value has this content.

    at_once: the values of all contents of a list, if all can be seen at once to be
        right, else None: files have thousands of numbers, and a call for each takes
        long. `decode` finds what is wrong.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    at_once: Callable[[list[Any]], list[Any] | None] = _never


#: Contents whose values a codec remembers (see `remembering`).
_REMEMBERED: Final = 16


def remembering(codec: Codec) -> Codec:
    """The same codec, for values that nobody changes, of which files that are read one
    after the other have the same: the descriptions of a model, in those of its ranks.
    """
    known: dict[bytes, Any] = {}

    def decode(content: Any) -> Any:
        try:
            key = marshal.dumps(content, 2)  # tells 1 from true, as == does not
        except ValueError:  # no plain JSON: something is given twice
            return codec.decode(content)
        if key not in known:
            found = codec.decode(content)
            if len(known) >= _REMEMBERED:
                known.clear()
            known[key] = found
        return known[key]

    return codec._replace(decode=decode)


def of_plain(
    is_one: Callable[[Any], bool],
    wanted: str,
    are_all: Callable[[list[Any]], bool],
) -> Codec:
    """For what JSON has a type for.

    is_one, are_all: whether a content is right, and all of a list are.
    wanted: what it has to be, in words.
    """

    def decode(content: Any) -> Any:
        if not is_one(content):
            raise wrong(content, wanted)
        return content

    def at_once(contents: list[Any]) -> list[Any] | None:
        return contents if are_all(contents) else None

    return Codec(lambda value: value, decode, at_once)


def have_type(kind: type, contents: list[Any]) -> bool:
    """Whether that is the type of all of them, and there are some."""
    return set(map(type, contents)) == {kind}


def of_whole_numbers(allowed: Whole) -> Codec:
    """For whole numbers that are not too large."""
    least = -(2**allowed.bits) if allowed.is_signed else 0
    end = 2**allowed.bits
    low = f"-2^{allowed.bits}" if allowed.is_signed else "0"
    return of_plain(
        lambda content: type(content) is int and least <= content < end,
        f"a whole number from {low} to 2^{allowed.bits}-1",
        lambda contents: (
            have_type(int, contents) and least <= min(contents) and max(contents) < end
        ),
    )


def of_choices(choices: tuple[str, ...]) -> Codec:
    """For one of a few texts."""
    return of_plain(
        lambda content: isinstance(content, str) and content in choices,
        f"one of {', '.join(map(repr, choices))}",
        lambda contents: have_type(str, contents) and set(contents) <= {*choices},
    )


def or_none(inner: Codec) -> Codec:
    """For a value that may be missing: null."""
    return Codec(
        lambda value: None if value is None else inner.encode(value),
        lambda content: None if content is None else inner.decode(content),
    )


def of_lists(item: Codec, length: Length | None = None) -> Codec:
    """For tuples of values of one type."""

    def decode(content: Any) -> tuple[Any, ...]:
        if type(content) is not list:
            raise wrong(content, "a list")
        if length and not length.least <= len(content) <= length.most:
            count = f"{length.least} to {length.most}"
            raise DamageError(f"has {len(content)} items; it has to have {count}")
        values = item.at_once(content)
        if values is not None:
            return tuple(values)
        decoded: list[Any] = []
        try:
            for each in content:
                decoded.append(item.decode(each))
        except DamageError as damage:
            raise damage.inside(f"[{len(decoded)}]") from None
        return tuple(decoded)

    def at_once(contents: list[Any]) -> list[Any] | None:
        # There are no tuples in JSON: these have been decoded already.
        return contents if have_type(tuple, contents) else None

    return Codec(lambda value: [item.encode(each) for each in value], decode, at_once)


def of_maps(item: Codec) -> Codec:
    """For values of one type by name."""

    def decode(content: Any) -> dict[str, Any]:
        decoded = {}
        for name, each in checked_object(content).items():
            try:
                decoded[name] = item.decode(each)
            except DamageError as damage:
                raise damage.inside(f"[{short_repr(name)}]") from None
        return decoded

    return Codec(lambda value: {k: item.encode(v) for k, v in value.items()}, decode)
