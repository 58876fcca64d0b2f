"""What a field of a record may hold: written beside its type, checked in files.

A record (a dataclass or a NamedTuple of `profiles/`) says it in its annotations::

    calls: Count = 0
    flops: Annotated[BigCount, OPTIONAL] = 0

which is all that files need to write, read and check it (see `files.schema`).
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

#: Bits of the numbers in files: of sums of times (292 years in nanoseconds) and bytes,
#: and of sums that may be larger.
_BITS: Final = 63
_BIG_BITS: Final = 126


class Whole(NamedTuple):
    """A whole number, of so many bits; below zero only if it is signed."""

    bits: int = _BITS
    is_signed: bool = False


class Length(NamedTuple):
    """So many items, in a list of a file."""

    least: int
    most: int


class Mark(NamedTuple):
    """Something else that files need to know of a field."""

    meaning: str


#: Left out of files where it has its default.
OPTIONAL: Final = Mark("optional")
#: In no file: it follows from the rest.
DERIVED: Final = Mark("derived")
#: A record whose fields stand among those of the one that it is in.
INLINE: Final = Mark("inline")

#: How often something happened, or nanoseconds, or bytes.
Count = Annotated[int, Whole()]
#: The same where it may be below zero, such as bytes less those that were freed.
Signed = Annotated[int, Whole(is_signed=True)]
#: Squares of nanoseconds, or floating-point operations.
BigCount = Annotated[int, Whole(_BIG_BITS)]
