"""Values as plain JSON types and back, checked on the way back; and files with one JSON
object, which errors name."""

from __future__ import annotations

import json
import marshal
import reprlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from torchprof_hooks.profiles.errors import ProfileFileError

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


def checked_object(content: Any) -> dict[str, Any]:
    """A JSON object, or `DamageError`."""
    if type(content) is not dict:
        raise wrong(content, "an object with fields")
    return content


class Codec:
    """Turns values of one type into JSON types, and back.

    decode: makes a value of a content. Raises `DamageError` if that stands for none.
    """

    def __init__(
        self, encode: Callable[[Any], Any], decode: Callable[[Any], Any]
    ) -> None:
        self.encode = encode
        self.decode = decode

    def decode_all(self, contents: list[Any]) -> list[Any]:
        """The values of all contents of a list."""
        found: list[Any] = []
        try:
            for content in contents:
                found.append(self.decode(content))
        except DamageError as damage:
            raise damage.inside(f"[{len(found)}]") from None
        return found


class PlainCodec(Codec):
    """For values of a type that JSON has, too.

    are_right: tells whether all values of this type in a list are valid.
    wanted: what they have to be, in words.
    """

    def __init__(
        self, kind: type, are_right: Callable[[Sequence[Any]], bool], wanted: str
    ) -> None:
        super().__init__(lambda value: value, self._decoded)
        self._kind = kind
        self._are_right = are_right
        self._wanted = wanted

    def _decoded(self, content: Any) -> Any:
        if type(content) is not self._kind or not self._are_right((content,)):
            raise wrong(content, self._wanted)
        return content

    def decode_all(self, contents: list[Any]) -> list[Any]:
        """All contents of a list, checked together: files have thousands of numbers,
        and a call for each takes long."""
        have_kind = set(map(type, contents)) <= {self._kind}
        if contents and not (have_kind and self._are_right(contents)):
            super().decode_all(contents)  # says which is wrong
        return contents


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
        except ValueError:  # nested too deep
            return codec.decode(content)
        if key not in known:
            found = codec.decode(content)
            if len(known) >= _REMEMBERED:
                known.clear()
            known[key] = found
        return known[key]

    return Codec(codec.encode, decode)


def of_numbers(least: int, end: int, wanted: str) -> Codec:
    """For whole numbers from `least` on, below `end`."""
    return PlainCodec(int, lambda n: least <= min(n) and max(n) < end, wanted)


def of_choices(choices: tuple[str, ...]) -> Codec:
    """For one of a few texts."""
    wanted = f"one of {', '.join(map(repr, choices))}"
    return PlainCodec(str, frozenset(choices).issuperset, wanted)


def or_none(inner: Codec) -> Codec:
    """For a value that may be missing: null."""
    return Codec(
        lambda value: None if value is None else inner.encode(value),
        lambda content: None if content is None else inner.decode(content),
    )


def of_lists(item: Codec) -> Codec:
    """For tuples of values of one type."""

    def decode(content: Any) -> tuple[Any, ...]:
        if type(content) is not list:
            raise wrong(content, "a list")
        return tuple(item.decode_all(content))

    return Codec(lambda value: [item.encode(each) for each in value], decode)


def of_maps(item: Codec) -> Codec:
    """For values of one type by name."""

    def decode(content: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, held in checked_object(content).items():
            try:
                found[name] = item.decode(held)
            except DamageError as damage:
                raise damage.inside(f"[{short_repr(name)}]") from None
        return found

    return Codec(lambda value: {k: item.encode(v) for k, v in value.items()}, decode)


def read_json(path: str | Path) -> Any:
    """The content of a file; it is not checked.

    Raises:
        ProfileFileError: it is not JSON.
        OSError: it cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        return json.loads(text)
    # A wrong encoding raises ValueError too; brackets without end, RecursionError.
    except (ValueError, RecursionError) as error:
        raise ProfileFileError(f"{path} is not a whole JSON file: {error}") from error


@contextmanager
def content_of(path: str | Path) -> Iterator[None]:
    """In this block, errors in the content of a file become a `ProfileFileError` with
    the path of the file."""
    try:
        yield
    except DamageError as damage:
        raise ProfileFileError(f"{path} is damaged: {damage}") from None
    except RecursionError:
        raise ProfileFileError(f"{path} is damaged: it is nested too deep") from None
    except ValueError as error:
        raise ProfileFileError(f"{path} {error}") from None
