"""How long calls keep an accelerator busy, by stamps in its queue of work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from torchprof_hooks.kernel.core import CORE, NATIVE
from torchprof_hooks.kernel.observer import Observer
from torchprof_hooks.kernel.reading import Reading, Step
from torchprof_hooks.kernel.reference.span_log import NO_SUMS, Int64s, at_length
from torchprof_hooks.kernel.torch_names.tensors import unnoticed
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.measure.accelerator import EventClock, default_device_clock

if TYPE_CHECKING:
    from torchprof_hooks.profiles.data import ProfileData

#: What a profile says where several devices were stamped.
SEVERAL_DEVICES: Final = (
    "several devices are in use: what calls do on others than that of their "
    "parameters is nobody's device time"
)
#: So many steps are stamped at first, and then one in so many.
STAMPED: Final = 8

Factors = np.ndarray[Any, np.dtype[np.float64]]


class StampedSteps:
    """Until the first step has ended, and in `STAMPED` steps then, the device is
    stamped; later, in one of so many. Device times of the other steps are estimated
    from these, by calls.

    steps, stamped: how many steps and evaluation calls have ended, and how many of
        them were stamped.
    """

    def __init__(self, meter: Any) -> None:
        self._meter = meter  # of the core
        self.steps = self.stamped = self._before = 0  # the first training step
        self._paused_at: Int64s | None = None  # calls by then; None: steps are stamped
        self._unstamped = NO_SUMS

    def step_ended(self, calls: Callable[[], Int64s], is_start: bool) -> None:
        """A step has ended. Chooses whether the next one is stamped.

        calls: returns how many calls have ended, by code.
        is_start: whether the first training step has not ended yet.
        """
        self.steps += 1
        was_stamped = self._paused_at is None
        self.stamped += was_stamped
        if is_start:
            self._before = self.steps
        steps = self.steps - self._before
        is_stamped = steps < STAMPED or steps % STAMPED == 0
        if is_stamped and not was_stamped:
            self._unstamped = self._unstamped_calls(calls())
            self._paused_at = None
        elif was_stamped and not is_stamped:
            self._paused_at = calls()
        self._meter.is_stamping = is_stamped

    def factors(self, calls: Int64s, of_first_step: Int64s) -> Factors:
        """What to multiply the device time of each site after the first step by, to
        have that of all of its calls then. Of sites where no call has ended, such as
        what is outside of all calls, steps count instead.

        calls, of_first_step: how many calls have ended, and how many of them in the
            first step; both by code, of the same length.
        """
        later = calls - of_first_step
        stamped = later - at_length(self._unstamped_calls(calls), len(calls))
        first = self._before + 1
        of_steps = max(self.steps - first, 1) / max(self.stamped - first, 1)
        of_calls = (later / stamped.clip(min=1)).clip(min=1.0)
        return np.where(later > 0, of_calls, of_steps)

    def _unstamped_calls(self, calls: Int64s) -> Int64s:
        paused_at = self._paused_at
        if paused_at is None:
            return self._unstamped
        size = len(calls)
        return at_length(self._unstamped, size) + calls - at_length(paused_at, size)


class DeviceMeter(Observer):
    """Stamps a device's queue of work where the thread leaves a call for another: the
    core does, once the program uses the device. What the device did between two stamps
    belongs to the call that was left.

    A call is on one device: that of its module's parameters, if they are all on one; or
    on that of the call around it, if that is known so; or else on the thread's current
    one. In backward, nodes are on the device whose thread runs them. What a call does
    on other devices belongs to nobody.

    stamped_steps: in which steps it does.
    """

    def __init__(self, clock: EventClock) -> None:
        self.name = clock.name
        self._clock = clock
        self._core = NATIVE.DeviceMeter(
            clock.name, clock.is_initialized, clock.is_in_use, clock.is_capturing
        )
        self.stamped_steps = StampedSteps(self._core)
        self._is_start = True  # the first training step has not ended
        #: By code of the site, as of the last `settle`; and calls as of the mark.
        self._own_ns = self._marked_ns = self._marked_calls = NO_SUMS

    @property
    def is_awake(self) -> bool:
        """Whether the program uses the device."""
        return bool(self._core.is_awake)

    # As an observer

    def follow(self, reading: Reading) -> None:
        super().follow(reading)
        reading.device = self._core

    def began(self) -> None:
        self._core.interrupt()
        self.reading.look_for_device()

    def new_call(self, site: Site, module: torch.nn.Module) -> None:
        if self._clock.device_count() > 1:
            site.device = _device_index(module, self.name)

    def first_step_ended(self) -> None:
        self._marked_calls = self.reading.calls()
        self._core.mark()
        self._is_start = False

    def between_steps(self, step: Step) -> None:
        self.stamped_steps.step_ended(self.reading.calls, self._is_start)

    def settle(self) -> None:
        """Wait for the device and book everything. For reports, not for steps."""
        if self._core.settle():
            self._own_ns, self._marked_ns = self._core.device_ns, self._core.marked_ns

    def columns(self, calls: Int64s, of_first_step: bool) -> dict[str, Sequence[Any]]:
        """Own time of each site on the device, as of the last `settle`; that of steps
        that were not stamped is estimated."""
        if not self.is_awake:
            return {}
        # The first step is always stamped.
        marked_ns = at_length(self._marked_ns, len(calls))
        found = marked_ns if of_first_step else self._estimated_ns(calls)
        return {"device_self_ns": [*map(round, found.clip(min=0).tolist())]}

    def _estimated_ns(self, calls: Int64s) -> Factors:
        size = len(calls)
        first_ns = at_length(self._marked_ns, size)
        later_ns = at_length(self._own_ns, size) - first_ns
        marked_calls = at_length(self._marked_calls, size)
        factors = self.stamped_steps.factors(calls, marked_calls)
        estimated_ns: Factors = first_ns + later_ns * factors
        return estimated_ns

    def added_to(self, profile: ProfileData) -> ProfileData:
        """The profile, which also says how the clock was read."""
        if not self.is_awake:
            return profile
        steps, has_several = self.stamped_steps, self._core.devices > 1
        unknown = (SEVERAL_DEVICES,) if has_several else ()
        # Before stamps: whether the device had done all that it was given.
        asked, waited = self._core.waits
        return replace(
            profile,
            devices=(self.name,),
            device_asked=asked,
            device_waits=waited,
            steps_with_device_times=steps.stamped,
            steps_without_device_times=steps.steps - steps.stamped,
            not_measured=(*profile.not_measured, *unknown),
        )


def _device_index(module: torch.nn.Module, kind: str) -> int:
    """The index of the device that has all parameters of the module; -1: none has. No
    code of the user's runs: a parameter of a class of the user's is on none."""
    found = set()
    with unnoticed():
        for _, parameter in torch.nn.Module.named_parameters(module):
            is_of_torch = type(parameter) is torch.nn.Parameter
            device = parameter.device if is_of_torch else None
            found.add(device.index if device and device.type == kind else -1)
            if len(found) > 1:
                return -1
    return found.pop() if found else -1


def device_observers() -> list[DeviceMeter]:
    """What observes the accelerator of this machine, if there is one, and the native
    core runs. This does not put the accelerator into use."""
    clock = None if CORE.module is None else default_device_clock()
    return [] if clock is None else [DeviceMeter(clock)]
