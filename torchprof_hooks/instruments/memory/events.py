"""What happened to blocks of memory in one step, as the core has recorded it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.profiles.memory import MEMORY_KINDS, MemoryPoint
from torchprof_hooks.profiles.names import OUTSIDE_NAME

#: How many moments of a step the profile has.
_POINTS: Final = 200
_TEMPORARY: Final = MEMORY_KINDS.index("temporary")
_ACTIVATION: Final = MEMORY_KINDS.index("activation")

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


class What(IntEnum):
    """See `What` in native/meters/memory_events.h."""

    WAS_IN_USE = 0
    TOOK = 1
    GAVE = 2
    TURNED_OUT = 3
    CALLED = 4
    RETURNED = 5
    INPUT = 6
    OUTPUT = 7


#: `MemoryEvent` in native/meters/memory_events.h.
_EVENT: Final = np.dtype(
    [
        *((name, np.int64) for name in ("serial", "bytes", "at_ns")),
        ("code", np.int32),
        *((name, np.uint8) for name in ("what", "kind", "was", "_")),
    ]
)


class Blocks(NamedTuple):
    """The blocks that were taken in the step, in that order; each is an array.

    serial: the number of a block. began, ended: the events in which it was taken and
        given back; if it was not, `ended` is the number of all events.
    """

    serial: Array
    bytes: Array
    kind: Array
    began: Array
    ended: Array


class MemoryEvents:
    """The events of a step, in order.

    events: an array with the fields of `MemoryEvent`.
    blocks: what was taken.
    levels: the bytes in use of each kind (rows, as in `MEMORY_KINDS`) after each event
        (columns). Kinds are as blocks were classified by the end of the step.
    level: all of them together.
    """

    def __init__(self, recorded: bytes, sites: Sequence[Site]) -> None:
        self.events = np.frombuffer(recorded, _EVENT)
        self.sites = sites
        self.blocks = self._find_blocks()
        self.levels = self._find_levels()
        self.level: Array = self.levels.sum(axis=0)

    def of(self, what: What) -> Array:
        """The places of all such events."""
        return np.flatnonzero(self.events["what"] == what)

    def _find_blocks(self) -> Blocks:
        events = self.events
        began = self.of(What.TOOK)
        serial = events["serial"][began]
        ended = np.full(len(began), len(events))
        kind = np.full(len(began), _TEMPORARY, dtype=np.uint8)
        for what, of_blocks in (What.GAVE, ended), (What.TURNED_OUT, kind):
            places = self.of(what)
            where = np.searchsorted(serial, events["serial"][places])
            is_known = where < len(serial)
            is_known[is_known] = (
                serial[where[is_known]] == events["serial"][places][is_known]
            )
            values = places if what is What.GAVE else events["kind"][places]
            of_blocks[where[is_known]] = values[is_known]
        again = np.array([s.phase == "recompute" for s in self.sites], dtype=bool)
        is_gone = (kind == _TEMPORARY) & again[events["code"][began]]
        kind[is_gone] = _ACTIVATION
        return Blocks(serial, events["bytes"][began], kind, began, ended)

    def _find_levels(self) -> Array:
        events, blocks = self.events, self.blocks
        changes = np.zeros((len(MEMORY_KINDS), len(events) + 1), dtype=np.int64)
        np.add.at(changes, (blocks.kind, blocks.began), blocks.bytes)
        np.add.at(changes, (blocks.kind, blocks.ended), -blocks.bytes)
        # A block from before has its later kind from the begin of the step on.
        first = blocks.serial[0] if len(blocks.serial) else np.iinfo(np.int64).max
        for place in np.flatnonzero(events["serial"] < first):
            _, size, _, _, what, kind, was, _ = events[place].item()
            if what == What.WAS_IN_USE:
                changes[kind, 0] += size
            elif what == What.GAVE:
                changes[kind, place] -= size
            elif what == What.TURNED_OUT:
                changes[was, 0] -= size
                changes[kind, 0] += size
        found: Array = changes.cumsum(axis=1)[:, :-1]
        return found

    def points(self) -> tuple[MemoryPoint, ...]:
        """The course of the step: its begin, and the highest moment of each of many
        equal times."""
        events = self.events
        what = events["what"]
        moved = np.flatnonzero((what == What.TOOK) | (what == What.GAVE))
        if not len(moved):
            return ()
        level, at_ns = self.level[moved], events["at_ns"][moved]
        first_ns = int(events["at_ns"][0])
        width_ns = max(int(at_ns[-1] - first_ns) // _POINTS, 1)
        starts = np.flatnonzero(np.diff((at_ns - first_ns) // width_ns)) + 1
        points = []
        if at_ns[0] - first_ns >= width_ns:
            points.append(MemoryPoint(0, OUTSIDE_NAME, "outside", self._by_kind(0)))
        for begin, end in zip([0, *starts], [*starts, len(moved)], strict=True):
            place = moved[begin + int(level[begin:end].argmax())]
            site = self.sites[events["code"][place]]
            since_ns = int(events["at_ns"][place]) - first_ns
            call, by_kind = _call_at(site), self._by_kind(place)
            points.append(MemoryPoint(since_ns, call, site.phase, by_kind))
        return tuple(points)

    def _by_kind(self, place: int) -> tuple[int, ...]:
        return tuple(map(int, self.levels[:, place]))


def _call_at(site: Site) -> str:
    """``Net.head: linear(8x4, 4x4)``: a function has its module in front."""
    around = site.enclosing.name
    if site.function is not None and around and not around.startswith("("):
        return f"{around}: {site.name}"
    return site.name or OUTSIDE_NAME
