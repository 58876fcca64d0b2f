"""How much of a traced step a device idled, and whose host code it waited for."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from torchprof_hooks.profiles.names import OUTSIDE_NAME, Phase
from torchprof_hooks.profiles.trace.step_trace import (
    DeviceActivity,
    ModuleSpan,
    StepTrace,
)


class _HostPlace(NamedTuple):
    """A module (or optimizer, data loading, ...) in one phase."""

    module: str
    phase: Phase


_OUTSIDE: Final = _HostPlace(OUTSIDE_NAME, "outside")

#: Idle time in which the host had launched the next work already, but the device had
#: not begun it: the latency of a launch, the gaps between the kernels of a graph, and
#: work that waits for another stream or device.
LAUNCHED_NAME: Final = "(launched, not yet begun)"
#: Idle time before work of which the launch was not recorded.
UNSEEN_NAME: Final = "(launch not recorded)"

_LAUNCHED: Final = _HostPlace(LAUNCHED_NAME, "outside")
_NOT_RECORDED: Final = _HostPlace(UNSEEN_NAME, "outside")


class IdleRow(NamedTuple):
    """Time in which a device idled while the host was in one place.

    module, phase: the place: a module (or optimizer, data loading, ...) and its phase.
    """

    module: str
    phase: Phase
    idle_ns: int


class DeviceUse(NamedTuple):
    """How long one device was busy in the step, and where its idle time is booked.

    device: its name, "cuda:0".
    rows: the longest first.
    """

    device: str
    busy_ns: int
    rows: tuple[IdleRow, ...] = ()

    @property
    def idle_ns(self) -> int:
        """Nanoseconds in which it did nothing."""
        return sum(row.idle_ns for row in self.rows)


@dataclass(frozen=True, slots=True)
class DeviceIdle:
    """How busy devices were in one step.

    step: the number of the step.
    step_ns: how long it took on the host. For each device, that is the sum of its busy
        time and of its rows.
    devices: those that did anything, by name.
    reason: why there is no step, "" if there is one.
    """

    step: int = 0
    step_ns: int = 0
    devices: tuple[DeviceUse, ...] = ()
    reason: str = ""


def find_device_idle(trace: StepTrace) -> DeviceIdle:
    """Divide the step into busy and idle time, for each device.

    A device is busy while any of its streams runs a kernel, a copy or the like. The
    rest of the step are gaps, each of which ends when the next activity begins, or
    with the step. The host launched that activity. So a gap is divided as follows:

    - From its begin to the launch, the device waited for the host. Each moment is
      booked on the innermost module (or optimizer, data loading, ...) that the host was
      in at that moment. This is the host's code on its way to the launch. A host that
      has waited for the device, and returns late from that, is still in the code that
      waited.
    - From the launch to the end of the gap, the device did not wait for the host: this
      time is in the row `LAUNCHED_NAME`. If the launch was before the gap, all of the
      gap is.
    - A gap before an activity whose launch was not recorded is not divided. It is in
      the row `UNSEEN_NAME`.
    - The gap after the last activity is booked on what the host did until the end of
      the step.

    Modules are found by time only: backward of a device runs in threads of the
    engine, and `StepTrace.modules` has the spans of that, too. So work that another
    thread of the program launches is booked where the thread of the step is meanwhile.

    Without activities, there are no devices.
    """
    by_device: dict[str, list[DeviceActivity]] = {}
    for activity in trace.activities:
        by_device.setdefault(activity.device, []).append(activity)
    places = _HostPlaces(trace.modules)
    uses = (
        _use(device, found, trace, places)
        for device, found in sorted(by_device.items())
    )
    step_ns = max(trace.end_ns - trace.start_ns, 0)
    return DeviceIdle(trace.step, step_ns, tuple(use for use in uses if use.busy_ns))


def _use(
    device: str, activities: list[DeviceActivity], trace: StepTrace, places: _HostPlaces
) -> DeviceUse:
    idle: Counter[_HostPlace] = Counter()
    now_ns, busy_ns = trace.start_ns, 0
    for activity in sorted(activities, key=_order):
        if activity.end_ns <= now_ns or now_ns >= trace.end_ns:
            continue  # it lies before the step, inside of others, or after the step
        begin_ns = min(activity.start_ns, trace.end_ns)
        if begin_ns > now_ns:
            _book(idle, now_ns, begin_ns, activity.launch_ns, places)
            now_ns = begin_ns
        end_ns = min(activity.end_ns, trace.end_ns)
        busy_ns += end_ns - now_ns
        now_ns = end_ns
    if now_ns < trace.end_ns:
        _book(idle, now_ns, trace.end_ns, trace.end_ns, places)
    rows = (IdleRow(*place, idle_ns) for place, idle_ns in idle.items() if idle_ns)
    return DeviceUse(device, busy_ns, tuple(sorted(rows, key=_longest)))


def _order(activity: DeviceActivity) -> tuple[int, int]:
    """Sorting key: by start; of those that start together, by launch."""
    launch_ns = activity.launch_ns
    return activity.start_ns, activity.start_ns if launch_ns is None else launch_ns


def _longest(row: IdleRow) -> tuple[int, str, str]:
    return -row.idle_ns, row.module, row.phase


def _book(
    idle: Counter[_HostPlace],
    begin_ns: int,
    end_ns: int,
    launch_ns: int | None,
    places: _HostPlaces,
) -> None:
    """Book one gap. The activity that ends it was launched at `launch_ns`."""
    if launch_ns is None:
        idle[_NOT_RECORDED] += end_ns - begin_ns
        return
    launch_ns = min(max(launch_ns, begin_ns), end_ns)
    for place, host_ns in places.during(begin_ns, launch_ns):
        idle[place] += host_ns
    idle[_LAUNCHED] += end_ns - launch_ns


class _HostPlaces:
    """Where the host was: in the innermost module that was running, at any time."""

    def __init__(self, modules: Iterable[ModuleSpan]) -> None:
        self._times: list[int] = []  # when the innermost module changed
        self._places: list[_HostPlace] = []  # what it changed to
        running: list[ModuleSpan] = []
        for span in sorted(modules, key=lambda span: (span.start_ns, -span.end_ns)):
            self._leave(running, span.start_ns)
            running.append(span)
            self._enter(span.start_ns, running)
        self._leave(running, max((span.end_ns for span in running), default=0))

    def during(self, begin_ns: int, end_ns: int) -> Iterator[tuple[_HostPlace, int]]:
        """The places from one moment to another, and how long each lasted."""
        if begin_ns >= end_ns:
            return
        first = bisect_right(self._times, begin_ns)
        last = bisect_right(self._times, end_ns)
        places = [self._places[first - 1] if first else _OUTSIDE]
        places += self._places[first:last]
        bounds = pairwise([begin_ns, *self._times[first:last], end_ns])
        for place, (from_ns, to_ns) in zip(places, bounds, strict=True):
            yield place, to_ns - from_ns

    def _leave(self, running: list[ModuleSpan], now_ns: int) -> None:
        """Leave the calls that are over. A call that ends after the call around it
        keeps that open for as long."""
        ended_ns = 0
        while running and running[-1].end_ns <= now_ns:
            ended_ns = max(ended_ns, running.pop().end_ns)
            self._enter(ended_ns, running)

    def _enter(self, now_ns: int, running: list[ModuleSpan]) -> None:
        inner = running[-1] if running else None
        self._times.append(now_ns)
        self._places.append(_HostPlace(inner.name, inner.phase) if inner else _OUTSIDE)
