"""Records of numbers, each field of which says how it is added: so a new field is named
in one place, and is in sums, differences, parts, rows and files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields
from functools import cache
from typing import Annotated, Any, TypeVar

#: Numbers in files are in this range: not negative, and below 2^63. Others say so.
Signed = Annotated[int, -(1 << 63), 1 << 63]
Large = Annotated[int, 0, 1 << 127]

A = TypeVar("A", bound="Amounts")


def summed(
    default: Any = 0, *, of_calls: bool = False, is_derived: bool = False
) -> Any:
    """A field that is added up.

    of_calls: whether it is of the calls themselves, and so does not become a part of
        the call around them, where they have no row.
    is_derived: whether files do not have it, since it follows from the others.
    """
    return field(
        default=default, metadata={"own": not of_calls, "is_derived": is_derived}
    )


def inside(of: str, default: Any = 0) -> Any:
    """A field with the sum of the field `of` of calls, and of all calls that they made.
    It follows from the cells: files do not have it."""
    return field(default=default, metadata={"inside": of, "is_derived": True})


def shortest() -> Any:
    """A field with the least of all."""
    return field(default=0, metadata={"sum": min, "difference": _whole})


def longest() -> Any:
    """A field with the most of all."""
    return field(default=0, metadata={"sum": max, "difference": _whole})


def added_by(how: Callable[[Any, Any], Any], **of_field: Any) -> Any:
    """A field that is no number: `how` makes that of both of those of two records."""
    return field(metadata={"sum": how}, **of_field)


def _whole(whole: Any, _: Any) -> Any:
    return whole


@cache
def _of_fields(kind: Any, key: str, sign: str) -> Callable[[Any, Any], list[Any]]:
    """A function from two records of a class to the sums, or differences, of their
    fields. It is one expression, as dataclasses make theirs: large models have a
    hundred thousand records to add up.

    key, sign: where a field says how that is done, and how it is if it does not.
    """
    hows: dict[str, Any] = {}
    terms = []
    for name, metadata in ((each.name, each.metadata) for each in fields(kind)):
        if key in metadata:
            hows[f"of_{name}"] = metadata[key]
            terms.append(f"of_{name}(a.{name}, b.{name})")
        else:
            terms.append(f"a.{name} {sign} b.{name}")
    made: Callable[[Any, Any], list[Any]] = eval(
        f"lambda a, b: [{', '.join(terms)}]", hows
    )
    return made


def sums_of(one: Any, other: Any) -> list[Any]:
    """The values of all fields of the sum of two records of one class."""
    kind: Any = type(one)  # mypy does not know that classes can be hashed
    return _of_fields(kind, "sum", "+")(one, other)


class Amounts:
    """A record whose fields are made by `summed`, `inside`, `shortest`, `longest`."""

    __slots__ = ()

    def __add__(self: A, other: A) -> A:
        return type(self)(*sums_of(self, other))

    def __sub__(self: A, other: A) -> A:
        """Without some of the calls. Of extremes it is not known which calls set them:
        they stay."""
        kind: Any = type(self)
        return type(self)(*_of_fields(kind, "difference", "-")(self, other))
