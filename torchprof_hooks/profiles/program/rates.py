"""What turns the times of a whole program into rates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final

from torchprof_hooks.profiles.files.fields import OPTIONAL, Count
from torchprof_hooks.profiles.operations.utilisation import Peak
from torchprof_hooks.profiles.profile import Profile


@dataclass(frozen=True, slots=True)
class ProgramRates:
    """What the user, or the data sheet of the device, says about rates.

    peak: the most operations per second that the device can do, None if unknown.
    items_per_step: tokens, samples or the like, 0 if nobody said.
    """

    peak: Annotated[Peak | None, OPTIONAL] = None
    items_per_step: Annotated[Count, OPTIONAL] = 0

    def added(self, estimate: Profile) -> Profile:
        """An estimate of all steps, as if functions had been measured, with rates."""
        items = self.items_per_step * estimate.steps
        return replace(estimate, peak=self.peak, items=items)


NO_RATES: Final = ProgramRates()
