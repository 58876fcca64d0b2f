"""Bytes that functions read and write, as the shapes of their tensors tell."""

from __future__ import annotations

from operator import add, sub
from typing import Annotated, Final, NamedTuple

from torchprof_hooks.profiles.files.fields import OPTIONAL, BigCount, Count


class Traffic(NamedTuple):
    """What calls of functions of one kind have to move: each input is read once, each
    output written once, by shapes and types.

    Caches and copies inside of a function are not looked at, so a real kernel may move
    more. A function that returns a view of its input moves nothing.

    traffic_calls: calls whose bytes are known; of the others, nothing is counted.
    read_bytes: bytes of the inputs. A tensor that is expanded counts as if it had all
        its elements. One that is given twice, as in ``x * x``, counts once; the first
        call of a kind shows whether that is so.
    written_bytes: bytes of the outputs.
    """

    traffic_calls: Annotated[Count, OPTIONAL] = 0
    read_bytes: Annotated[BigCount, OPTIONAL] = 0
    written_bytes: Annotated[BigCount, OPTIONAL] = 0

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes

    def plus(self, other: Traffic) -> Traffic:
        """The traffic of both."""
        # Mostly, there is none.
        if other is NO_TRAFFIC:
            return self
        if self is NO_TRAFFIC:
            return other
        return Traffic(*map(add, self, other))

    def minus(self, other: Traffic) -> Traffic:
        """This traffic less that of some of the calls, `other`."""
        if other == NO_TRAFFIC:
            return self
        return Traffic(*map(sub, self, other))

    def scaled(self, factor: float) -> Traffic:
        """The traffic of `factor` times as many calls."""
        if self == NO_TRAFFIC:
            return self
        return Traffic(*(round(number * factor) for number in self))

    def share(self, some: int, most: int) -> Traffic:
        """The traffic of `some` of `most` calls, which are alike."""
        if self == NO_TRAFFIC:
            return self
        return Traffic(*(number * some // most for number in self))

    def within(self, whole: Traffic) -> Traffic:
        """This traffic, with each number that is above that of `whole` cut to it."""
        return self if self == NO_TRAFFIC else Traffic(*map(min, self, whole))


NO_TRAFFIC: Final = Traffic()
