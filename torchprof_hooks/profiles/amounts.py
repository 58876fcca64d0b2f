"""Records of numbers, each field of which says how it is added: so a new field is named
in one place, and is in sums, differences, parts, rows and files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields
from functools import cache
from operator import add, attrgetter, sub
from typing import Annotated, Any, NamedTuple, TypeVar

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


class _Fields(NamedTuple):
    """The fields of a record.

    values: all values of a record, in order.
    sums, differences: how two values are added, and how one is taken out of the other.
    """

    values: Callable[[Any], tuple[Any, ...]]
    sums: tuple[Callable[[Any, Any], Any], ...]
    differences: tuple[Callable[[Any, Any], Any], ...]


@cache
def _fields_of(kind: Any) -> _Fields:
    every = fields(kind)
    return _Fields(
        attrgetter(*(each.name for each in every)),
        tuple(each.metadata.get("sum", add) for each in every),
        tuple(each.metadata.get("difference", sub) for each in every),
    )


def sums_of(one: Any, other: Any) -> list[Any]:
    """The values of all fields of the sum of two records of one class."""
    kind: Any = type(one)  # mypy does not know that classes can be hashed
    values, sums, _ = _fields_of(kind)
    pairs = zip(sums, values(one), values(other), strict=True)
    return [how(a, b) for how, a, b in pairs]


class Amounts:
    """A record whose fields are made by `summed`, `inside`, `shortest`, `longest`."""

    __slots__ = ()

    def __add__(self: A, other: A) -> A:
        return type(self)(*sums_of(self, other))

    def __sub__(self: A, other: A) -> A:
        """Without some of the calls. Of extremes it is not known which calls set them:
        they stay."""
        kind: Any = type(self)
        values, _, differences = _fields_of(kind)
        pairs = zip(differences, values(self), values(other), strict=True)
        return type(self)(*[how(a, b) for how, a, b in pairs])
