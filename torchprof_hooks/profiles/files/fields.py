"""Annotations that say what a field of a record may hold; files check it.

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
    """A whole number of at most `bits` bits; below zero only if it is signed."""

    bits: int = _BITS
    is_signed: bool = False


class Mark(NamedTuple):
    """Another property of a field that matters for files."""

    meaning: str


#: Left out of files where it has its default.
OPTIONAL: Final = Mark("optional")
#: Never in a file: it follows from other fields.
DERIVED: Final = Mark("derived")

#: A number of times, nanoseconds or bytes.
Count = Annotated[int, Whole()]
#: A count that may be below zero, such as allocated less freed bytes.
Signed = Annotated[int, Whole(is_signed=True)]
#: Squares of nanoseconds, or floating-point operations.
BigCount = Annotated[int, Whole(_BIG_BITS)]
