"""Adds to a profile what rates need: the peak of the device, and the items per step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from torchprof_hooks.profiles.options import MOST_FLOPS, check_positive, check_whole

if TYPE_CHECKING:
    from torchprof_hooks.profiles.data import P
    from torchprof_hooks.profiles.peak import Peak


class Rates(NamedTuple):
    """The options of `profile` for rates, checked.

    peak_flops: operations per second; None if the user gave no number.
    items: items per step; 0 if the user gave no number.
    """

    peak_flops: int | None = None
    items: int = 0

    def added(self, profile: P) -> P:
        """The profile with its items, and with the peak, if a data sheet tells it."""
        if not (self.items or profile.has_functions):
            return profile
        peak = self._peak(profile)
        return replace(profile, peak=peak, items=self.items * profile.steps)

    def _peak(self, profile: P) -> Peak | None:
        """The user's peak, or that of the device that did most operations by its data
        sheet; None if it is not known."""
        from torchprof_hooks.documents.utilisation import counted_types
        from torchprof_hooks.measure.peaks import device_peak
        from torchprof_hooks.profiles.peak import Peak

        if self.peak_flops is None:
            return device_peak(*counted_types(profile))
        return Peak(self.peak_flops, "given as peak_flops")

    def tried(self, profile: P) -> P:
        """The same profile; if it has no peak, and the CPU did most operations, with
        the measured peak of the CPU. To measure it takes a tenth of a second or so, the
        first time."""
        if not profile.has_functions or profile.peak is not None:
            return profile
        from torchprof_hooks.documents.utilisation import counted_types
        from torchprof_hooks.measure.peaks import measured_peak
        from torchprof_hooks.measure.uninterrupted import in_own_thread

        dtype, device_type = counted_types(profile)
        if device_type != "cpu":
            return profile
        tried: list[Peak | None] = []

        def measure() -> None:
            tried.append(measured_peak(dtype))

        if not in_own_thread(measure):  # a program that is ending gets no other thread
            measure()
        return replace(profile, peak=tried[0]) if tried else profile


def checked_rates(peak_flops: object, items_per_step: object, functions: bool) -> Rates:
    """Check the user's options, and make `Rates` of them."""
    items = check_whole("items_per_step", items_per_step, 0)
    if peak_flops is None:
        return Rates(None, items)
    check_positive("peak_flops", peak_flops)
    if not functions:
        raise ValueError("peak_flops needs functions=True, which counts operations")
    flops = float(peak_flops)  # type: ignore[arg-type]
    if flops > MOST_FLOPS:
        raise ValueError(
            f"peak_flops must be below {MOST_FLOPS:.0e}, not {peak_flops!r}"
        )
    return Rates(max(round(flops), 1), items)
