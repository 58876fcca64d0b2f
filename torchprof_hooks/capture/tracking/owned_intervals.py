"""What becomes of the intervals of nodes that calls own, when calls end. These are
methods of `ThreadCalls`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchprof_hooks.capture.backward.ownership import FIELDS
from torchprof_hooks.capture.backward.parts import Part, are_many
from torchprof_hooks.capture.torch_names.autograd import next_sequence_number

if TYPE_CHECKING:
    from torchprof_hooks.capture.tracking.thread_calls import ThreadCalls


def keep_intervals(self: ThreadCalls, low: int, outputs: object) -> None:
    """Make a record of the intervals from number `low` on."""
    passes = self.backward
    if passes is None or not passes.divides:  # nobody asks whose a node is
        self.take_intervals(-1)
        return
    if self.site is not self.outside and _keep_part(self, low, outputs):
        return
    own = self.take_intervals(low)
    if self.interval_count and self.site is self.outside:
        self.keep_loose()
    if own:
        self.ownership.add(passes.record_of(self, own, low), outputs)


def forget_oldest(self: ThreadCalls) -> None:
    """The native core has made a big record: older ones may have to go."""
    self.ownership.forget_oldest()


def _keep_part(self: ThreadCalls, low: int, outputs: object) -> bool:
    """Whether the call that has ended was a part of a frame. Its intervals then stay
    with the frame, which owns the nodes around them, for as long as they are needed."""
    since, high = _low_of_frames(self), next_sequence_number()
    if since is None:
        return False
    if high != low:
        part = Part(low, high)
        is_tied = bool(self.ownership.tie(part, outputs))
        self.parts.add(part, since, self.interval_count, is_tied)
    if self.interval_count > self.parts.look_at and not self.passes:
        self.own(self.parts.living(self.take_intervals(since)))
    return True


def _low_of_frames(self: ThreadCalls) -> int | None:
    """The number of the first node that the outermost open frame can own."""
    frames = [site for site in self.open_sites() if site.is_frame]
    return frames[-1].low if frames else None


def open_frames(self: ThreadCalls) -> None:
    """A pass begins inside of open calls. If many calls have ended inside of these,
    they train in a loop, maybe for as long as the program: make them frames."""
    if self.passes or not are_many(self.interval_count):
        return  # a call that is recomputed in a pass soon ends
    found = [s for s in self.open_sites() if s.is_called and not s.is_frame]
    for site in found:
        self.tree.make_frame(site)
    since = _low_of_frames(self)
    if found and since is not None:
        self.parts.hold(Part(found[-1].low, next_sequence_number()), since)


def keep_loose(self: ThreadCalls) -> None:
    """Make a record of the intervals of loose calls (see `Ownership`)."""
    own = self.take_intervals(-1)
    if own and self.backward is not None:
        lowest = min(own[1::FIELDS])
        self.ownership.add_loose(self.backward.record_of(self, own, lowest))


def keep_elsewhere(
    self: ThreadCalls, elsewhere: dict[int, list[int]], outputs: object
) -> None:
    """Make records of the nodes that other threads have made in a pass that has ended.
    The calls that are open around the pass own all of them."""
    assert self.backward is not None  # there are passes
    around = [code for code, _, _ in self.open_intervals()]
    for thread, made in elsewhere.items():
        low, high = min(made[1::FIELDS]), max(made[2::FIELDS])
        own = [*made]
        for code in reversed(around):
            own += code, low, high
        record = self.backward.record_of(self, own, low, thread)
        self.ownership.add(record, outputs, thread)
