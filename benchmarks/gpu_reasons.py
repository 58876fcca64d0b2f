"""Why the time between two stamps differs from that of the kernels between them.

A stamp is passed as soon as all is done that was launched before it in its stream; on
an idle stream, at once. So from when the host moved from module to module, and when
kernels were launched and ran, follows what stamps say, and what it consists of.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from kernel_times import Activity, Owner, Timeline

#: What differs by less needs no reason.
TOLERANCE: Final = 0.02
#: Shares of the difference that are not worth a word.
_LEAST_SHARE: Final = 0.1


@dataclass
class Interval:
    """All between the stamps of one owner; nanoseconds.

    kernels: how many ran.
    busy_ns: how long, in the stream of the stamps.
    host_gap_ns: the stream was idle, and the host had not launched the next one yet.
    before_ns: it was idle though the first kernel of a call was launched.
    between_ns: the same, between two kernels of a call.
    elsewhere_ns: kernels in other streams, which these stamps do not see.
    """

    kernels: int = 0
    busy_ns: int = 0
    host_gap_ns: int = 0
    before_ns: int = 0
    between_ns: int = 0
    elsewhere_ns: int = 0

    @property
    def stamps_ns(self) -> int:
        """What stamps are to say."""
        return self.busy_ns + self.host_gap_ns + self.before_ns + self.between_ns

    @property
    def kernels_ns(self) -> int:
        """What the kernels took, in all streams."""
        return self.busy_ns + self.elsewhere_ns

    def per_step(self, steps: int) -> Interval:
        """Of one step."""
        return Interval(
            *(round(getattr(self, each.name) / steps) for each in fields(self))
        )


def main_stream(activities: Iterable[Activity]) -> tuple[int, int] | None:
    """That which is busy the longest: there, stamps are taken. None: nothing ran."""
    busy: Counter[tuple[int, int]] = Counter()
    for each in activities:
        busy[each.stream] += each.end_ns - each.start_ns
    return max(busy, key=lambda stream: busy[stream], default=None)


def find_intervals(
    activities: Sequence[Activity], timeline: Timeline
) -> Mapping[Owner, Interval]:
    """What is between the stamps of each owner.

    activities: in the order in which they began.
    """
    stream = main_stream(activities)
    found: defaultdict[Owner, Interval] = defaultdict(Interval)
    own = []
    for each in activities:
        if each.launch_ns is None:
            continue  # nobody knows whose it is
        interval = found[timeline.at(each.launch_ns)]
        interval.kernels += 1
        if each.stream == stream:
            own.append(each)
        else:
            interval.elsewhere_ns += each.end_ns - each.start_ns
    _Stream(timeline, found).follow(own)
    return {owner: each for owner, each in found.items() if each != Interval()}


class _Stream:
    """Goes along the stream of the stamps, from one kernel to the next."""

    def __init__(self, timeline: Timeline, found: defaultdict[Owner, Interval]) -> None:
        self._timeline = timeline
        self._found = found
        moves = timeline.moves
        self._now_ns = moves[0].time_ns if moves else 0  # on the device's clock
        self._launched_ns = self._now_ns - 1  # what was launched by then is done

    def follow(self, activities: Iterable[Activity]) -> None:
        for each in activities:
            assert each.launch_ns is not None
            self._wait(each.launch_ns, each.start_ns)
            owner = self._timeline.at(each.launch_ns)
            self._found[owner].busy_ns += self._until(each.end_ns)
        if self._timeline.moves:
            last_ns = self._timeline.moves[-1].time_ns
            self._wait(last_ns, last_ns)

    def _wait(self, launch_ns: int, start_ns: int) -> None:
        """The stream is idle until `start_ns`, or not at all."""
        owner = self._timeline.at(self._launched_ns)
        moves = self._timeline.during(self._launched_ns, launch_ns)
        for move in moves:
            # Its stamp is passed now, or as soon as the host takes it.
            self._found[owner].host_gap_ns += self._until(min(move.time_ns, start_ns))
            owner = move.owner
        interval = self._found[owner]
        interval.host_gap_ns += self._until(min(launch_ns, start_ns))
        if moves:
            interval.before_ns += self._until(start_ns)
        else:
            interval.between_ns += self._until(start_ns)
        self._launched_ns = max(self._launched_ns, launch_ns)

    def _until(self, time_ns: int) -> int:
        """Goes on to that time, unless it is past; how long that is."""
        passed_ns = max(time_ns - self._now_ns, 0)
        self._now_ns += passed_ns
        return passed_ns


def parts(found_ns: float, interval: Interval) -> dict[str, float]:
    """What the difference of stamps and kernels is made of, in nanoseconds. What is
    missing from the stamps is below 0."""
    return {
        "gap for the host": interval.host_gap_ns,
        "gaps between its kernels": interval.between_ns,
        "gap before its first kernel": interval.before_ns,
        "another stream": -interval.elsewhere_ns,
        "not explained": found_ns - interval.stamps_ns,
    }


def reason(found_ns: float, interval: Interval) -> str:
    """Why the stamps' `found_ns` is not the time of the kernels, the largest part
    first; "" if it is, nearly."""
    if abs(found_ns - interval.kernels_ns) <= TOLERANCE * interval.kernels_ns:
        return ""
    return ", ".join(
        f"{what} {share:.0%}" for what, share in _shares(parts(found_ns, interval))
    )


def _shares(found: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Of the sum of all sizes: those that are worth a word, the largest first."""
    whole = sum(map(abs, found.values()))
    for what in sorted(found, key=lambda what: -abs(found[what])):
        share = abs(found[what]) / whole if whole else 0.0
        if share >= _LEAST_SHARE:
            yield what, share
