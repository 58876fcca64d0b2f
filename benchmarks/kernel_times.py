"""What Kineto says that devices ran for each module: the truth for device times.

In forward, kernels belong to the innermost module that they were launched in; in
backward, to the one in which the autograd node was made that launches them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import nn
from torch.profiler import profile, record_function

from torchprof_hooks.kernel.torch_names.profiler import activity_type, flat_events

Phase = Literal["forward", "backward"]
PHASES: Final[tuple[Phase, ...]] = ("forward", "backward")

_MODULE: Final = "module: "
_NODE: Final = "autograd::engine::evaluate_function: "
_LEAF: Final = f"{_NODE}torch::autograd::AccumulateGrad"

#: What devices do; other events on their tracks are ranges of the program, or counters.
_WORK: Final = {"kernel", "gpu_memcpy", "gpu_memset"}
#: Calls by which the host gives devices something to do: "cuda_runtime", ...
_CALLS: Final = ("_runtime", "_driver")


class Owner(NamedTuple):
    """A module by the name that our rows have ("": none), and a phase."""

    module: str
    phase: Phase


OUTSIDE: Final = Owner("", "forward")

#: Of owners.
Sums = dict[Owner, float]


class Move(NamedTuple):
    """The host goes over to another owner."""

    time_ns: int
    owner: Owner


class Timeline:
    """In which owner the host was at any time."""

    def __init__(self, moves: Iterable[Move]) -> None:
        self.moves = list(moves)
        self._times = [move.time_ns for move in self.moves]

    def at(self, time_ns: int) -> Owner:
        """The owner at that time."""
        place = bisect_right(self._times, time_ns)
        return self.moves[place - 1].owner if place else OUTSIDE

    def during(self, begin_ns: int, end_ns: int) -> Sequence[Move]:
        """The moves after `begin_ns`, until `end_ns`."""
        first = bisect_right(self._times, begin_ns)
        return self.moves[first : bisect_right(self._times, end_ns)]


class Activity(NamedTuple):
    """A kernel, or a copy, that a device ran.

    stream: the device's index, and the stream's number.
    launch_ns: when the host launched it; None if that was not recorded.
    """

    stream: tuple[int, int]
    start_ns: int
    end_ns: int
    launch_ns: int | None


class Trace:
    """What was recorded, once `trace` is over."""

    def __init__(self) -> None:
        self.events: Sequence[Any] = ()

    def timeline(self) -> Timeline:
        """Where the host was."""
        return Timeline(find_moves(self.events))

    def activities(self) -> list[Activity]:
        """What devices ran, the first first."""
        return sorted(find_activities(self.events), key=lambda each: each.start_ns)

    def by_module(self) -> Sums:
        """Microseconds of kernels, copies and fills."""
        timeline = self.timeline()
        sums: defaultdict[Owner, float] = defaultdict(float)
        for each in self.activities():
            if each.launch_ns is not None:
                owner = timeline.at(each.launch_ns)
                sums[owner] += (each.end_ns - each.start_ns) / 1000
        return dict(sums)


@contextmanager
def trace(model: nn.Module) -> Iterator[Trace]:
    """Record what devices run for `model`, with torch's profiler."""
    traced = Trace()
    with named_ranges(model), recorded() as traced.events:
        yield traced


@contextmanager
def recorded() -> Iterator[list[Any]]:
    """The events of torch's profiler, once this is over. They are torch's raw ones:
    it takes seconds to make others of them."""
    activities = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
    events: list[Any] = []
    with profile(activities=activities) as profiler:
        yield events
    events += flat_events(profiler)


@contextmanager
def named_ranges(model: nn.Module) -> Iterator[None]:
    """Have a range recorded around each call of a module, with the name that our rows
    have: ``Net.blocks.0``."""
    root = type(model).__name__
    open_ranges: list[record_function] = []

    def opens(name: str) -> Callable[..., None]:
        def open_range(*_: object) -> None:
            open_ranges.append(record_function(name))
            open_ranges[-1].__enter__()  # type: ignore[no-untyped-call]

        return open_range

    def close_range(*_: object) -> None:
        open_ranges.pop().__exit__(None, None, None)

    handles = []
    for path, module in model.named_modules():
        name = f"{_MODULE}{root}.{path}" if path else f"{_MODULE}{root}"
        handles.append(module.register_forward_pre_hook(opens(name)))
        handles.append(module.register_forward_hook(close_range))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def find_activities(events: Iterable[Any]) -> Iterator[Activity]:
    """What devices ran, each with its launch: the call with the same correlation."""
    launches: dict[int, int] = {}
    work = []
    for event in events:
        kind = activity_type(event)
        if kind in _WORK:
            work.append(event)
        elif kind.endswith(_CALLS):
            launches[event.correlation_id()] = event.start_ns()
    for event in work:
        start_ns = event.start_ns()
        stream = event.device_index(), event.device_resource_id()
        launch_ns = launches.get(event.correlation_id())
        yield Activity(stream, start_ns, start_ns + event.duration_ns(), launch_ns)


class _Place(NamedTuple):
    """A range, an autograd node, or an operation that may have made one."""

    name: str
    start_ns: int
    end_ns: int
    number: int

    @property
    def is_range(self) -> bool:
        return self.name.startswith(_MODULE)

    @property
    def is_node(self) -> bool:
        return self.name.startswith(_NODE)


def find_moves(events: Iterable[Any]) -> Iterator[Move]:
    """The way of the host through modules and nodes, by time alone: while an engine's
    thread runs nodes, the one that has called `backward()` waits."""
    places = sorted(_places(events), key=lambda each: (each.start_ns, -each.end_ns))
    return (Move(time_ns, owner) for time_ns, owner in _Walk().moves(places))


def _places(events: Iterable[Any]) -> Iterator[_Place]:
    for event in events:
        if event.device_type().name != "CPU":
            continue
        found = _Place(
            event.name(), event.start_ns(), event.end_ns(), event.sequence_nr()
        )
        if found.is_range or found.is_node or found.number >= 0:
            yield found


class _Walk:
    """Goes through places in the order of their begin."""

    def __init__(self) -> None:
        self._around: list[tuple[_Place, Owner]] = []
        #: The module that made the node with a number: that of the operation which was
        #: the last to begin before the next number was due.
        self._makers: dict[int, str] = {}
        self._last_maker = ""

    def moves(self, places: Iterable[_Place]) -> Iterator[Move]:
        for place in places:
            yield from self._leave(place.start_ns, before_node=place.is_node)
            if place.is_range or place.is_node:
                owner = self._owner_of(place)
                self._around.append((place, owner))
                yield Move(place.start_ns, owner)
            elif not any(around.is_node for around, _ in self._around):
                self._makers[place.number] = self._owner().module
        while self._around:
            yield from self._leave(self._around[-1][0].end_ns)

    def _leave(self, now_ns: int, before_node: bool = False) -> Iterator[Move]:
        while self._around and self._around[-1][0].end_ns <= now_ns:
            place, _ = self._around.pop()
            # Between two nodes, a profiler is still in the first one's owner.
            if not (before_node and place.is_node):
                yield Move(place.end_ns, self._owner())

    def _owner(self) -> Owner:
        return self._around[-1][1] if self._around else OUTSIDE

    def _owner_of(self, place: _Place) -> Owner:
        if place.is_range:
            return Owner(place.name.removeprefix(_MODULE), "forward")
        # What adds to a leaf has no number. It runs after the node that it is fed by.
        if not place.name.startswith(_LEAF):
            self._last_maker = self._makers.get(place.number, "")
        return Owner(self._last_maker, "backward")
