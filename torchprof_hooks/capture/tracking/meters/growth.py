"""Which owners of memory have more from step to step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from torchprof_hooks.capture.core.span_log import Int64s, padded

#: An owner grows if it has had more than ever before at the ends of so many stretches
#: in a row: so many bytes more a step in all together, and half as many in each.
_STRETCHES: Final = 12
_LEAST: Final = 1024
#: Stretches are 1, 2, 4, ... steps long, so that what is kept in one of many steps
#: shows, too. So many of each length are looked back at.
_LENGTHS: Final = tuple(1 << power for power in range(11))
_KEPT: Final = 24
#: What grows less fast, by this, in so many steps or the last stretch has stopped; and
#: what has had no more for so many times as long as is usual.
_LATELY: Final = 8
_SHARE: Final = 0.53
_GAPS: Final = 3


class Growing(NamedTuple):
    """How an owner grows: what it has, what a step adds, and the first such step."""

    code: int
    kind: int
    bytes: int
    bytes_per_step: float
    since: int


class _Moment(NamedTuple):
    """The end of a step, by two numbers of the step. most: the most bytes that each
    owner has had until then. rises: how often these have risen."""

    step: int
    number: int
    most: Int64s
    rises: Int64s


_NONE: Final[Int64s] = np.zeros(0, np.int64)


class Growth:
    """Is told what owners have at the ends of steps; in constant memory.

    log: the core's meter of memory.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._owners: dict[tuple[int, int], int] = {}  # (code, kind) -> place
        self._owner_of_part: Int64s = _NONE
        self._held = self._fall = self._risen = _NONE  # by the place of the owner
        self._last = _Moment(0, 0, _NONE, _NONE)
        self._ends = [deque[_Moment](maxlen=_KEPT + 1) for _ in _LENGTHS]

    def step_ended(self, number: int, held: Int64s, groups: Sequence[int]) -> None:
        """A step has ended.

        held: what there is of each part (see `step_ended` of the core).
        groups: of codes from 0, the code that stands for the owner.
        """
        if len(held) > len(self._owner_of_part):
            self._add_parts(groups)
        last = self._last
        sums = np.bincount(self._owner_of_part, held, len(self._owners))
        self._held = now = sums.astype(np.int64)
        step = last.step + 1
        # What was there at the end of the first step is no growth.
        most = last.most if last.step else now
        rises = now - most >= _LEAST
        self._fall = np.maximum(self._fall, most - now)
        self._risen = np.where(rises, step, self._risen)
        most = np.maximum(most, now)
        self._last = _Moment(step, number, most, last.rises + rises)
        for length, ends in zip(_LENGTHS, self._ends, strict=True):
            if step % length:
                break
            ends.append(self._last)

    def _add_parts(self, groups: Sequence[int]) -> None:
        added = []
        for code, kind in self._log.parts(len(self._owner_of_part)):
            group = groups[code] if 0 <= code < len(groups) else code
            added.append(self._owners.setdefault((group, kind), len(self._owners)))
        self._owner_of_part = np.append(self._owner_of_part, added).astype(np.int64)
        count, last = len(self._owners), self._last
        self._fall, self._risen = padded(self._fall, count), padded(self._risen, count)
        most, rises = padded(last.most, count), padded(last.rises, count)
        self._last = last._replace(most=most, rises=rises)

    def growing(self) -> list[Growing]:
        """The owners that grow. When that began is told by the shortest stretches that
        show it, unless longer ones know that it began well before."""
        began: dict[int, _Moment] = {}
        for length, ends in zip(_LENGTHS, self._ends, strict=True):
            for place, begin in self._in_a_row([*ends], length):
                known = began.get(place)
                if known is None or begin.step + 2 * length <= known.step:
                    began[place] = begin
        owners = [*self._owners]
        return [
            Growing(
                *owners[place],
                int(self._held[place]),
                self._speed(place, begin),
                begin.number + 1,
            )
            for place, begin in began.items()
        ]

    def _in_a_row(
        self, ends: list[_Moment], length: int
    ) -> Iterator[tuple[int, _Moment]]:
        """The owners that had more than before at the ends of all of the last stretches
        and that go on; with the moment when that began."""
        if len(ends) <= _STRETCHES:
            return
        most = np.stack([padded(end.most, len(ends[-1].most)) for end in ends])
        rises = np.diff(most, axis=0)[::-1]  # that of the last stretch first
        stays = rises < max(_LEAST * length // 2, _LEAST)
        stretches = np.where(stays.any(0), stays.argmax(0), len(stays))
        lately = ends[-1 - max(_LATELY // length, 1)]
        for place in np.flatnonzero(stretches >= _STRETCHES).tolist():
            begin = ends[-1 - int(stretches[place])]
            speed, grown = self._speed(place, begin), self._grown(place, begin)
            grows = speed >= _LEAST and grown > int(self._fall[place])
            goes_on = self._speed(place, lately) >= speed * _SHARE
            if grows and goes_on and not self._has_paused(place, begin):
                yield place, begin

    def _has_paused(self, place: int, begin: _Moment) -> bool:
        before = int(begin.rises[place]) if place < len(begin.rises) else 0
        rises = int(self._last.rises[place]) - before
        risen = int(self._risen[place])
        return (self._last.step - risen) * rises > _GAPS * (risen - begin.step)

    def _grown(self, place: int, begin: _Moment) -> int:
        before = int(begin.most[place]) if place < len(begin.most) else 0
        return int(self._last.most[place]) - before

    def _speed(self, place: int, begin: _Moment) -> float:
        """Bytes a step since then."""
        return self._grown(place, begin) / (self._last.step - begin.step)
