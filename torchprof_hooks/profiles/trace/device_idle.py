"""How much of a traced step a device idled, and whose host code it waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.trace.host_places import (
    UNSEEN_NAME,
    HostPlaces,
)
from torchprof_hooks.profiles.trace.step_trace import DeviceActivity, StepTrace

#: Idle time in which the host had launched the next work already, but the device had
#: not begun it: the latency of a launch, the gaps between the kernels of a graph, and
#: work that waits for another stream or device.
LAUNCHED_NAME: Final = "(launched, not yet begun)"

#: The name of a module (or optimizer, ...), and its phase.
_Place = tuple[str, Phase]
_LAUNCHED: Final[_Place] = (LAUNCHED_NAME, "outside")
_NOT_RECORDED: Final[_Place] = (UNSEEN_NAME, "outside")


class IdleRow(NamedTuple):
    """Time in which a device idled while the host was in one place.

    module, phase: the place: a module (or optimizer, data loading, ...) and its phase.
    """

    module: str
    phase: Phase
    idle_ns: int


def find_idle(
    activities: Iterable[DeviceActivity], trace: StepTrace, places: HostPlaces
) -> tuple[int, tuple[IdleRow, ...]]:
    """Divide the step into the time in which one device is busy, and rows of idle time,
    the longest first.

    The device is busy while any of its streams runs a kernel, a copy or the like. The
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
    """
    idle: Counter[_Place] = Counter()
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
    rows = [IdleRow(*place, idle_ns) for place, idle_ns in idle.items() if idle_ns]
    rows.sort(key=lambda row: (-row.idle_ns, row.module, row.phase))
    return busy_ns, tuple(rows)


def _order(activity: DeviceActivity) -> tuple[int, int]:
    """Sorting key: by start; of those that start together, by launch."""
    launch_ns = activity.launch_ns
    return activity.start_ns, activity.start_ns if launch_ns is None else launch_ns


def _book(
    idle: Counter[_Place],
    begin_ns: int,
    end_ns: int,
    launch_ns: int | None,
    places: HostPlaces,
) -> None:
    """Book one gap. The activity that ends it was launched at `launch_ns`."""
    if launch_ns is None:
        idle[_NOT_RECORDED] += end_ns - begin_ns
        return
    launch_ns = min(max(launch_ns, begin_ns), end_ns)
    for place, host_ns in places.during(begin_ns, launch_ns):
        idle[place.module, place.phase] += host_ns
    idle[_LAUNCHED] += end_ns - launch_ns
