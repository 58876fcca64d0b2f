"""Which module call made which autograd node.

Every node carries the number that its thread's counter had when the node was made.
Reading that counter when a module's forward begins and when it ends gives an interval;
the call owns the nodes with a number inside, and of nested intervals the innermost
counts. Nothing is attached to the user's tensors for that, whatever the module's inputs
and outputs look like.
"""

from __future__ import annotations

import dataclasses
import weakref
from _thread import get_ident
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import torch

from torchprof_hooks.capture.torch_names.autograd import node_of, sequence_number

#: Numbers of one owned interval in a record: code of the site, low, high (exclusive).
FIELDS: Final = 3
#: Records kept although no output of their call was found to tie them to.
NEWEST_RECORDS: Final = 64
#: Bytes that these may take together, unless there is only one. Only records above
#: `BIG_RECORD_BYTES` can exceed that; the native core knows this number, too.
NEWEST_BYTES_KEPT: Final = 1 << 22
BIG_RECORD_BYTES: Final = NEWEST_BYTES_KEPT // NEWEST_RECORDS
#: Bytes of records of loose calls that are kept, however long their graphs live: 20 000
#: intervals. Older ones are forgotten, and their nodes go by their own names.
LOOSE_BYTES_KEPT: Final = 1 << 19
#: How deep outputs are searched for tensors.
OUTPUT_DEPTH: Final = 4
#: How many parts of an output are looked at, about.
OUTPUTS_SEARCHED: Final = 256

_METADATA_KEY: Final = "torchprof_hooks"

Interval = tuple[int, int, int]


def newest_first(numbers: Sequence[int]) -> Iterator[Interval]:
    """Flat intervals, which are in the order in which their calls ended, in the order
    in which a backward pass meets them: a call before the calls inside it, later calls
    before earlier ones."""
    for end in range(len(numbers), 0, -FIELDS):
        yield numbers[end - 3], numbers[end - 2], numbers[end - 1]


class Record:
    """The intervals of one outermost call and of all calls inside it, each behind
    those that it contains (the order in which calls end)."""

    __slots__ = ("__weakref__", "high", "intervals", "low", "tied")

    def __init__(self, intervals: list[int], low: int) -> None:
        self.intervals = array("q", intervals)
        self.low = low  # given: a pass has no interval around all others
        self.high = intervals[-1]
        self.tied: list[int] = []  # numbers of the nodes that hold it

    @property
    def range(self) -> range:
        """The numbers that nodes of these calls may have."""
        return range(self.low, self.high)

    @property
    def size_bytes(self) -> int:
        """What the record takes in memory, with what refers to it, about."""
        return 400 + self.intervals.itemsize * len(self.intervals)

    def columns(self) -> tuple[array[int], array[int], array[int]]:
        """Codes, lows and highs of the intervals."""
        numbers = self.intervals
        return numbers[0::FIELDS], numbers[1::FIELDS], numbers[2::FIELDS]


class Ownership:
    """The records of one thread's calls, each alive for as long as its graph.

    A record is held by the autograd nodes of the call's outputs, and for a while by
    this object in case that no output was recognised. So a forward without backward
    leaves nothing behind, and a graph that waits for many steps keeps its owners.
    Records of loose calls, functions outside of any module, are tied to no graph: the
    newest are kept.
    """

    def __init__(self) -> None:
        # By the thread that made the nodes, which numbers its own; by rising number.
        self._records: dict[int, list[weakref.ref[Record]]] = {}
        # Records of the nodes that other threads have made in passes.
        self.elsewhere: weakref.WeakSet[Record] = weakref.WeakSet()
        self._newest: deque[Any] = deque(maxlen=NEWEST_RECORDS)
        self._loose: deque[Any] = deque()
        self._loose_bytes = 0
        self._prune_at = 2 * NEWEST_RECORDS

    @property
    def ties(self) -> tuple[object, deque[Any]]:
        """What the native core needs to do the same as `add`: the key of metadata, and
        the newest records."""
        return (_METADATA_KEY, id(self)), self._newest

    def add(self, record: Any, outputs: Any, thread: int = 0) -> None:
        """Remember what an outermost call owns that has just ended.

        record: a `Record`, or one of the native core, which finds its own by itself.
        thread: the one that has made the nodes, if that is not the running one. In
            Python, such a record counts for as long as its graph keeps it alive.
        """
        if thread and isinstance(record, Record):
            self.elsewhere.add(record)
            record.tied = self.tie(record, outputs)
            return
        self._newest.append(record)
        if record.size_bytes > BIG_RECORD_BYTES:
            self.forget_oldest()
        tied = self.tie(record, outputs)
        if isinstance(record, Record):
            record.tied = tied
            self._refer_to(record)

    def tie(self, record: Any, outputs: Any) -> list[int]:
        """Have a record, or a `Part`, held by those nodes of `outputs` whose numbers it
        covers. Returns these numbers."""
        tied: list[int] = []
        key, _ = self.ties
        if issubclass(type(outputs), torch.Tensor):  # the usual case
            nodes = [node_of(outputs)]
        else:
            nodes = nodes_behind(outputs)
        for node in nodes:
            if node is None:
                continue
            number = sequence_number(node)
            if record.low <= number < record.high:
                node.metadata[key] = record
                tied += [number]
        return tied

    def forget_oldest(self) -> None:
        """A big record was added to the newest ones: drop the oldest until they fit."""
        newest = self._newest
        held_bytes = sum(record.size_bytes for record in newest)
        while held_bytes > NEWEST_BYTES_KEPT and len(newest) > 1:
            held_bytes -= newest.popleft().size_bytes

    def add_loose(self, record: Any) -> None:
        """Remember what several loose calls own that ended one after the other. There
        are no outputs to tie the record to."""
        if isinstance(record, Record):
            self._refer_to(record)
        self._loose.append(record)
        self._loose_bytes += record.size_bytes
        while self._loose_bytes > LOOSE_BYTES_KEPT:
            self._loose_bytes -= self._loose.popleft().size_bytes

    def newest_records(self, low: int, high: int) -> Iterator[Record]:
        """The records of the running thread that reach into ``[low, high)``, newest
        first."""
        for reference in reversed(self._records.get(get_ident(), ())):
            record = reference()
            if record is None or record.low >= high:
                continue
            if record.high <= low:
                return
            yield record

    def with_elsewhere(
        self,
        records: list[Record],
        nodes: Mapping[int, Any],
        numbers: list[int],
        since: int,
    ) -> list[Record] | None:
        """The records, of the running thread and of others, that nodes may belong to,
        newest first; None if it is not clear for a node which thread has made it.

        nodes: by their numbers, which descend.
        since: the first number of the calls that are open.
        """
        low, high = numbers[-1], numbers[0] + 1
        reaching = [one for one in self.elsewhere if one.low < high and one.high > low]
        elsewhere = [one for one in reaching if self._is_behind(nodes, one)]
        if not elsewhere:
            return records
        taken = [range(since, high)]
        for record in elsewhere:
            shared = [one for one in records if _is_in_both(record, one.range, numbers)]
            # Of a graph that is not in this pass: here, other nodes have its numbers.
            strange = [o for o in shared if o.tied and not self._is_behind(nodes, o)]
            others = taken + [one.range for one in shared if one not in strange]
            if any(_is_in_both(record, other, numbers) for other in others):
                return None
            taken.append(record.range)
            records = [one for one in records if one not in strange]
        return sorted(records + elsewhere, key=lambda one: one.high, reverse=True)

    def _is_behind(self, nodes: Mapping[int, Any], record: Record) -> bool:
        """Whether the nodes of a call are among these: one of them holds its record."""
        key, _ = self.ties
        return any(
            nodes[number].metadata.get(key) is record
            for number in record.tied
            if number in nodes
        )

    def _refer_to(self, record: Record) -> None:
        """Remember a record by the running thread. For devices, that may be one of the
        engine's: a reentrant checkpoint recomputes there, and runs the pass over it."""
        records = self._records.setdefault(get_ident(), [])
        records.append(weakref.ref(record))
        if len(records) > self._prune_at:
            records[:] = [ref for ref in records if ref() is not None]
            self._prune_at = 2 * max(len(records), NEWEST_RECORDS)


def _is_in_both(record: Record, others: range, numbers: list[int]) -> bool:
    """Whether any of the numbers is one of the record's and one of the others."""
    both = range(max(record.low, others.start), min(record.high, others.stop))
    return bool(both) and any(number in both for number in numbers)


def nodes_behind(outputs: object) -> list[Any]:
    """The autograd nodes of tensors in what a module or a function returned.

    Runs no code of the user's: containers of other kinds than Python's own (and classes
    derived from these), very deep and very long ones are not searched through. Where no
    node is found, a record is not tied to its graph; see `NEWEST_RECORDS`. Mocks and
    proxies lie about their class to `isinstance`, which is therefore not used.
    """
    nodes: list[Any] = []
    to_visit: list[tuple[Any, int]] = [(outputs, 0)]
    for value, depth in to_visit:
        if issubclass(type(value), torch.Tensor):
            node = node_of(value)
            if node is not None:
                nodes.append(node)
        elif depth < OUTPUT_DEPTH and len(to_visit) < OUTPUTS_SEARCHED:
            parts = islice(_parts(value), OUTPUTS_SEARCHED)
            to_visit.extend((part, depth + 1) for part in parts)
    return nodes


def _parts(value: Any) -> Iterator[object]:
    kind = type(value)
    if issubclass(kind, tuple):
        return tuple.__iter__(value)
    if issubclass(kind, list):
        return list.__iter__(value)
    if issubclass(kind, dict):
        return iter(dict.values(value))
    if not issubclass(kind, type) and dataclasses.is_dataclass(kind):
        return iter(_attributes(value).values())
    return iter(())


def _attributes(value: object) -> dict[str, object]:
    try:
        found: dict[str, object] = object.__getattribute__(value, "__dict__")
    except AttributeError:  # it has slots
        return {}
    return found
