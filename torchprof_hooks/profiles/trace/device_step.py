"""What devices did in one traced step: how busy they were, and with what."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

from torchprof_hooks.profiles.trace.device_idle import IdleRow, find_idle
from torchprof_hooks.profiles.trace.host_places import HostPlaces
from torchprof_hooks.profiles.trace.kernels import KernelRow, Launches, find_kernels
from torchprof_hooks.profiles.trace.step_trace import DeviceActivity, StepTrace


class DeviceUse(NamedTuple):
    """What one device did.

    device: its name, "cuda:0".
    busy_ns: how long it ran anything during the step.
    rows: where its idle time in the step is booked, the longest first.
    kernels_ns: how long it ran, then or later, anything that the step had launched;
        time in which several streams did counts once.
    kernels: by the places that launched them, the longest first.
    """

    device: str
    busy_ns: int
    rows: tuple[IdleRow, ...] = ()
    kernels_ns: int = 0
    kernels: tuple[KernelRow, ...] = ()

    @property
    def idle_ns(self) -> int:
        """Nanoseconds in which it did nothing."""
        return sum(row.idle_ns for row in self.rows)

    @property
    def overlap_ns(self) -> int:
        """By how much the durations of kernels exceed `kernels_ns`, as streams ran some
        of them at once."""
        return sum(row.busy_ns for row in self.kernels) - self.kernels_ns


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """What devices did in one step.

    step: the number of the step.
    step_ns: how long it took on the host. For each device, that is the sum of its busy
        time and of its idle rows.
    devices: those that did anything, by name.
    reason: why there is no step, "" if there is one.
    """

    step: int = 0
    step_ns: int = 0
    devices: tuple[DeviceUse, ...] = ()
    reason: str = ""


def find_device_step(trace: StepTrace) -> DeviceStep:
    """What each device did (see `find_idle` and `find_kernels`). Without activities,
    there are no devices."""
    by_device: dict[str, list[DeviceActivity]] = {}
    for activity in trace.activities:
        by_device.setdefault(activity.device, []).append(activity)
    places = HostPlaces(trace.modules)
    launches = Launches(trace, places)
    uses = (
        DeviceUse(
            device,
            *find_idle(found, trace, places),
            *find_kernels(found, trace, launches),
        )
        for device, found in sorted(by_device.items())
    )
    step_ns = max(trace.end_ns - trace.start_ns, 0)
    devices = tuple(use for use in uses if use.busy_ns or use.kernels)
    return DeviceStep(trace.step, step_ns, devices)


def better_known(one: DeviceStep | None, other: DeviceStep | None) -> DeviceStep | None:
    """The step of two merged runs: the one about which more is known."""

    def known(step: DeviceStep) -> tuple[Any, ...]:
        return not step.reason, bool(step.devices), *astuple(step)

    return max(filter(None, (one, other)), key=known, default=None)
