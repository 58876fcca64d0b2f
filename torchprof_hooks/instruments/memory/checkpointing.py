"""What checkpointing modules would save: the peak of a step, if what their forward
keeps were dropped when it has no more use for that, and computed again when their
backward begins.

The step that was recorded is played again with that changed, block by block. (The peak
less what the modules keep is far off: the peak moves, and computing again takes the
memory of a forward.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from torchprof_hooks.instruments.memory.events import Array, MemoryEvents, What
from torchprof_hooks.profiles.kinds import without_numbers
from torchprof_hooks.profiles.memory import MEMORY_KINDS, Checkpointing
from torchprof_hooks.profiles.names import BACKWARD_PHASES

_ACTIVATION: Final = MEMORY_KINDS.index("activation")
#: Modules that keep less than this share of the peak, or that save less, are left out.
_LEAST: Final = 0.01
#: So many modules, and kinds of layers, are tried: those that keep most.
_MOST_TRIED: Final = 100


class _Call(NamedTuple):
    """A forward call that is checkpointed. Places are those of events.

    kept_bytes: what it keeps for backward, but for what it returns.
    dropped: where that would be given back instead, and its bytes, block by block.
    needed: where its backward begins.
    over: where all that it keeps has been given back.
    rise: the most that it takes, above what is in use when it begins.
    inputs: from where on blocks are kept longer, as computing again needs them; and
        their bytes.
    """

    kept_bytes: int
    dropped: tuple[Array, Array]
    needed: int
    over: int
    rise: int
    inputs: tuple[tuple[int, int], ...]


def checkpointing_of(events: MemoryEvents) -> tuple[Checkpointing, ...]:
    """What would lower the peak most, the lowest first: of single modules, and of all
    layers of a kind together."""
    level = events.level
    if not len(level):
        return ()
    peak = int(level.max())
    least = _LEAST * peak
    finder = _CallFinder(events)
    calls = {name: finder.calls_of(name) for name in finder.names()}
    kept = {name: sum(c.kept_bytes for c in each) for name, each in calls.items()}
    kinds = defaultdict[str, list[str]](list)
    for name, kept_bytes in kept.items():
        if kept_bytes > 0:
            kinds[without_numbers(name)].append(name)
    tried = {(name,) for name in kept} | {tuple(names) for names in kinds.values()}
    worth = {names: sum(map(kept.__getitem__, names)) for names in tried}
    found = []
    for names in sorted(tried, key=lambda n: (-worth[n], n))[:_MOST_TRIED]:
        if worth[names] >= least:
            every = [call for name in names for call in calls[name]]
            peak_bytes = _peak_with(level, every)
            found.append(Checkpointing(names, peak_bytes, len(every)))
    large = [each for each in found if each.peak_bytes <= peak - least]
    return tuple(sorted(large, key=lambda each: (each.peak_bytes, each.modules)))


def _peak_with(level: Array, calls: Sequence[_Call]) -> int:
    """The peak of a step in which these calls are checkpointed."""
    changes = np.zeros(len(level) + 1, dtype=np.int64)
    for call in calls:
        np.subtract.at(changes, *call.dropped)
        changes[call.needed] += call.kept_bytes
        for given_back, size in call.inputs:
            changes[given_back] += size
            changes[call.over] -= size
    changed = level + changes.cumsum()[:-1]
    again = (int(changed[call.needed - 1]) + call.rise for call in calls)
    return max(int(changed.max()), *again)


class _CallFinder:
    """Finds the forward calls of modules that keep something for a backward."""

    def __init__(self, events: MemoryEvents) -> None:
        self._events = events
        self._unused = _unused(events)
        # The places of the events of each site, and of what is below a module.
        codes = events.events["code"]
        order = np.argsort(codes, kind="stable")
        starts = np.searchsorted(codes[order], np.arange(len(events.sites) + 1))
        self._marks = defaultdict[str, list[Array]](list)
        self._in_backward = defaultdict[str, list[Array]](list)
        for site, begin, end in zip(events.sites, starts, starts[1:], strict=False):
            if begin == end:
                continue
            if site.phase == "forward":
                self._marks[site.name].append(order[begin:end])
            elif site.phase in BACKWARD_PHASES:
                for name in set(site.path):
                    self._in_backward[name].append(order[begin:end])

    def names(self) -> list[str]:
        """The modules that were called, in that order."""
        codes = self._events.events["code"][self._events.of(What.CALLED)]
        return [*dict.fromkeys(self._events.sites[code].name for code in codes)]

    def calls_of(self, name: str) -> list[_Call]:
        """The calls of a module, the last one first."""
        found: list[_Call] = []
        in_backward = _sorted(self._in_backward[name])
        spans = self._spans(_sorted(self._marks[name]))
        ends = ([begin for begin, _ in spans] + [len(self._events.level)])[1:]
        for (begins, returns), end in zip(spans[::-1], ends[::-1], strict=True):
            after = in_backward[np.searchsorted(in_backward, returns) :]
            if found and len(after) and after[0] > end:
                # Of several calls before a pass, it begins with the last.
                after = after[np.searchsorted(after, found[-1].over) :]
            if len(after):
                call = self._call(begins, returns, int(after[0]))
                if call.kept_bytes > 0:
                    found.append(call)
        return found

    def _spans(self, places: Array) -> list[tuple[int, int]]:
        """Where calls begin and end; calls inside of another one are a part of it."""
        what = self._events.events["what"]
        spans, depth, begins = [], 0, 0
        for place in map(int, places):
            if what[place] == What.CALLED:
                begins = place if depth == 0 else begins
                depth += 1
            elif what[place] == What.RETURNED and depth > 0:
                depth -= 1
                if depth == 0:
                    spans.append((begins, place))
        return spans

    def _call(self, begins: int, returns: int, needed: int) -> _Call:
        blocks = self._events.blocks
        own = slice(*np.searchsorted(blocks.began, [begins, returns]))
        is_kept = (blocks.ended[own] > needed) & (blocks.kind[own] == _ACTIVATION)
        outputs = self._noted(What.OUTPUT, returns + 1)
        is_kept &= ~np.isin(blocks.serial[own], outputs)
        sizes = blocks.bytes[own][is_kept]
        unused = self._unused[own][is_kept]
        over = int(blocks.ended[own][is_kept].max(initial=needed))
        over = min(over, len(self._events.level) - 1)
        given_back = []
        for serial in self._noted(What.INPUT, begins + 1):
            place = int(np.searchsorted(blocks.serial, serial))
            if blocks.serial[place : place + 1] != [serial]:
                continue  # was there before the step
            ended = int(blocks.ended[place])
            if returns < ended < over:
                given_back.append((ended, int(blocks.bytes[place])))
        level = self._events.level[begins : returns + 1]
        return _Call(
            int(sizes.sum()),
            (np.minimum(unused, returns), sizes),
            needed,
            over,
            int(level.max() - level[0]),
            tuple(given_back),
        )

    def _noted(self, what: What, begin: int) -> list[int]:
        """The blocks that are noted from one event on."""
        events, end = self._events.events, begin
        while end < len(events) and events["what"][end] == what:
            end += 1
        return [*{*map(int, events["serial"][begin:end])}]


def _unused(events: MemoryEvents) -> Array:
    """Where forward has no use for each block any more, as far as calls tell: the end
    of the one that took it, of the one that it was returned to, or of the last one that
    it was given to there."""
    user, returned_to, ends = dict[int, int](), dict[int, int](), dict[int, int]()
    running = [-1]  # calls, by where they begin
    what, serials = events.events["what"].tolist(), events.events["serial"].tolist()
    for place, serial in enumerate(serials):
        if what[place] == What.CALLED:
            running.append(place)
        elif what[place] == What.RETURNED and len(running) > 1:
            ends[running.pop()] = place
        elif what[place] == What.TOOK:
            user[serial] = running[-1]
        elif what[place] == What.OUTPUT:
            user[serial] = returned_to[serial] = running[-1]
        elif what[place] == What.INPUT and returned_to.get(serial) in running[-2:-1]:
            user[serial] = running[-1]
    never = len(serials)
    every = (ends.get(user[serial], never) for serial in events.blocks.serial.tolist())
    return np.fromiter(every, np.int64)


def _sorted(parts: list[Array]) -> Array:
    found: Array = np.sort(np.concatenate([np.array([], dtype=np.int64), *parts]))
    return found
