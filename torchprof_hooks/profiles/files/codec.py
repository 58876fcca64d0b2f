"""Values as plain JSON types and back, checked on the way back."""

from __future__ import annotations

import marshal
import reprlib
from collections.abc import Callable
from typing import Any, Final

_REPR: Final = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 60
#: A value as text, cut to the length that a message can hold.
short_repr: Final = _REPR.repr


class DamageError(ValueError):
    """A value that a file must not have, and its place: "cells[3].self_ns is -5".

    item: the position of the content with that value, of those decoded together.
    """

    def __init__(self, problem: str, place: str = "", item: int = 0) -> None:
        super().__init__(problem)
        self.problem = problem
        self.place = place
        self.item = item

    def inside(self, part: str, item: int = 0) -> DamageError:
        """The same error with the place of what contains the value."""
        return DamageError(self.problem, part + self.place, item)

    def __str__(self) -> str:
        return f"{self.place.removeprefix('.') or 'it'} {self.problem}"


def wrong(value: Any, wanted: str, item: int = 0) -> DamageError:
    """An error for a value that is not what it has to be."""
    problem = f"is {short_repr(value)}; it has to be {wanted}"
    return DamageError(problem, item=item)


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


class Codec:
    """Turns values of one type into JSON types, and back.

    decode_all: makes the values of all contents of a list: files have thousands of
        numbers, and a call for each takes long. Raises `DamageError` if one of the
        contents stands for no value.
    """

    def __init__(
        self,
        encode: Callable[[Any], Any],
        decode_all: Callable[[list[Any]], list[Any]],
    ) -> None:
        self.encode = encode
        self.decode_all = decode_all

    def decode(self, content: Any) -> Any:
        """The value of one content."""
        return self.decode_all([content])[0]


def one_by_one(decode: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
    """Decodes all contents with a function that decodes one."""

    def decode_all(contents: list[Any]) -> list[Any]:
        found: list[Any] = []
        try:
            for content in contents:
                found.append(decode(content))
        except DamageError as damage:
            raise damage.inside("", len(found)) from None
        return found

    return decode_all


def decode_present(
    codec: Codec, contents: list[Any], absent: object, default: Any
) -> list[Any]:
    """The values of contents; where one is `absent`, the default."""
    places = [n for n, content in enumerate(contents) if content is not absent]
    try:
        found = codec.decode_all([contents[place] for place in places])
    except DamageError as damage:
        raise damage.inside("", places[damage.item]) from None
    values = [default] * len(contents)
    for place, value in zip(places, found, strict=True):
        values[place] = value
    return values


#: Contents whose values a codec remembers (see `remembering`).
_REMEMBERED: Final = 16


def remembering(codec: Codec) -> Codec:
    """The same codec with a cache, for values that nobody changes, and that files which
    are read one after the other share: ranks have the same descriptions of modules.
    """
    known: dict[bytes, Any] = {}

    def decode(content: Any) -> Any:
        try:
            key = marshal.dumps(content, 2)  # tells 1 from true, as == does not
        except ValueError:  # no plain JSON: `RepeatedFields`
            return codec.decode(content)
        if key not in known:
            found = codec.decode(content)
            if len(known) >= _REMEMBERED:
                known.clear()
            known[key] = found
        return known[key]

    return Codec(codec.encode, one_by_one(decode))


def of_plain(are_right: Callable[[list[Any]], bool], wanted: str) -> Codec:
    """For values of a type that JSON has, too.

    are_right: tells whether all contents of a list are valid.
    wanted: what they have to be, in words.
    """

    def decode_all(contents: list[Any]) -> list[Any]:
        if contents and not are_right(contents):
            for item, content in enumerate(contents):
                if not are_right([content]):
                    raise wrong(content, wanted, item)
        return contents

    return Codec(lambda value: value, decode_all)


def have_type(kind: type, contents: list[Any]) -> bool:
    """Whether all contents are of exactly this type."""
    return set(map(type, contents)) == {kind}


def of_numbers(least: int, end: int, wanted: str) -> Codec:
    """For whole numbers from `least` on, below `end`."""
    return of_plain(
        lambda contents: (
            have_type(int, contents) and least <= min(contents) and max(contents) < end
        ),
        wanted,
    )


def of_choices(choices: tuple[str, ...]) -> Codec:
    """For one of a few texts."""
    return of_plain(
        lambda contents: have_type(str, contents) and set(contents) <= {*choices},
        f"one of {', '.join(map(repr, choices))}",
    )


def or_none(inner: Codec) -> Codec:
    """For a value that may be missing: null."""
    return Codec(
        lambda value: None if value is None else inner.encode(value),
        lambda contents: decode_present(inner, contents, None, None),
    )


def of_lists(item: Codec) -> Codec:
    """For tuples of values of one type."""

    def decode(content: Any) -> tuple[Any, ...]:
        if type(content) is not list:
            raise wrong(content, "a list")
        try:
            return tuple(item.decode_all(content))
        except DamageError as damage:
            raise damage.inside(f"[{damage.item}]") from None

    return Codec(
        lambda value: [item.encode(each) for each in value], one_by_one(decode)
    )


def of_maps(item: Codec) -> Codec:
    """For values of one type by name."""

    def decode(content: Any) -> dict[str, Any]:
        names = list(checked_object(content))
        try:
            values = item.decode_all(list(content.values()))
        except DamageError as damage:
            raise damage.inside(f"[{short_repr(names[damage.item])}]") from None
        return dict(zip(names, values, strict=True))

    return Codec(
        lambda value: {k: item.encode(v) for k, v in value.items()}, one_by_one(decode)
    )
