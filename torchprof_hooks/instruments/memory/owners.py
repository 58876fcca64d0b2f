"""Who holds the memory of the CPU, or of a device, and what it turns out to be:
parameters, buffers, gradients, states of optimizers, and what forward keeps for
backward.

The native core knows which call took each block (native/meters/ledger.h). What a block
is, only shows later: here, by the moment until which it is in use; and by the tensors
that models and optimizers have.
"""

from __future__ import annotations

from _thread import get_ident
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch

from torchprof_hooks.instruments.memory.holders import Holders, made_in
from torchprof_hooks.instruments.memory.known_tensors import KIND, KnownTensors
from torchprof_hooks.instruments.memory.meter import MemoryMeter, observed_allocators
from torchprof_hooks.instruments.memory.steps import Growth, StepRecorder
from torchprof_hooks.kernel.observer import Observer
from torchprof_hooks.kernel.reading import Reading
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.profiles.memory import (
    MemoryFailure,
    MemorySummary,
    growing_most,
)
from torchprof_hooks.profiles.names import OUTSIDE_NAME, Phase

if TYPE_CHECKING:
    from torchprof_hooks.profiles.data import ProfileData

#: Of so many steps, the last ones, the peaks are kept.
_STEPS_KEPT: Final = 8
#: See `Ledger::settle`.
_OUTSIDE: Final = 254  # a part of forward, if forward has begun
_UNKNOWN: Final = 255

#: What blocks that are still in use turn out to be at some moments, by the phase of the
#: call that took them; of other phases, see `_Turns`.
_Phases = dict[Phase, int]
_BACKWARD_BEGINS: Final[_Phases] = {
    "forward": KIND["activation"],
    "recompute": KIND["activation"],
    "outside": _OUTSIDE,
    "backward": _UNKNOWN,
}
_BACKWARD_ENDS: Final[_Phases] = {"backward": KIND["gradient"]}
_OPTIMIZER_ENDS: Final[_Phases] = {"optimizer": KIND["optimizer state"]}


class _Turns:
    """What blocks turn out to be at one moment, by the code of the call's site."""

    def __init__(self, sites: list[Site], phases: _Phases, others: int) -> None:
        self._sites = sites
        self._phases = phases
        self._others = others
        self._kinds = bytearray()

    def kinds(self) -> bytearray:
        """A byte for each site."""
        kinds = self._kinds
        for site in self._sites[len(kinds) :]:
            kinds.append(self._phases.get(made_in(site), self._others))
        return kinds


class MemoryOwners(Observer):
    """Tells the ledger of one thread what its blocks are.

    What is still in use when backward begins was made for it; what is left when it has
    ended, are gradients; and what is left of an optimizer's step is its state. Models
    and optimizers may have been there before: when they are first met, their tensors
    count as if they had been taken at the begin. Later, tensors are looked at again if
    more memory was in use since than ever before (a model may have got others). What is
    known of a block holds for the moment of the peak, too.

    meter: what counts the memory. Of a device, the core observes no blocks while
        nothing is measured: what is in use when it goes on is nobody's, until it is met
        again.
    """

    def __init__(self, meter: MemoryMeter) -> None:
        self._meter, self._log = meter, meter.log
        self.attachments = () if meter.counts_tensors else (observed_allocators,)
        self._known = KnownTensors(self._log)
        self._growth = Growth()
        self._step_peaks: deque[int] = deque(maxlen=_STEPS_KEPT)
        self._thread = get_ident()

    def follow(self, reading: Reading) -> None:
        super().follow(reading)
        sites = reading.sites
        self._recorder = StepRecorder(self._log)
        self._recorder.follow(reading)
        self._holders = Holders(sites, self._known)
        self._at_begin = _Turns(sites, _BACKWARD_BEGINS, KIND["other"])
        self._at_end = _Turns(sites, _BACKWARD_ENDS, _UNKNOWN)
        self._after_step = _Turns(sites, _OPTIMIZER_ENDS, _UNKNOWN)

    def begin_anew(self) -> None:
        """Forget everything: the meter measures a device from now on."""
        MemoryOwners.__init__(self, self._meter)
        self.follow(self.reading)

    def began(self) -> None:
        self._log.keep_owners(True)
        self._known.look_again(anew=True)
        self._recorder.begin()

    def ended(self) -> None:
        """Blocks that are taken from now on are nobody's."""
        self._recorder.drop()
        if self.attachments and get_ident() == self._thread:
            self._known.look_again()
        self._log.keep_owners(False)

    # What blocks turn out to be

    def new_call(self, site: Site, module: torch.nn.Module) -> None:
        if site.is_entry or site.caller.is_block():
            self._known.module_met(module, site.path)

    def optimizer_begins(self, optimizer: Any) -> None:
        self._known.optimizer_met(optimizer)

    def pass_begins(self) -> None:
        self._log.settle(self._at_begin.kinds())
        self._known.look_again()

    def pass_ended(self) -> None:
        with self.reading.our_work():
            self._log.settle(self._at_end.kinds())

    def optimizer_ended(self, optimizer: Any, ended_ns: int) -> None:
        with self.reading.our_work():
            self._log.settle(self._after_step.kinds())

    def step_ended(self, number: int) -> None:
        peak_bytes = self._log.step_ended()
        self._growth.step_ended(
            number, lambda: self._holders.in_use(self._log.holdings(False))
        )
        self._step_peaks.append(peak_bytes)
        self._recorder.end(peak_bytes)

    # Reading

    def added_to(self, profile: ProfileData) -> ProfileData:
        """The profile, with the peak, and who had what then."""
        if self._log.is_complete:
            return replace(profile, memory=self._summary())
        source = self._meter.name
        unknown = (
            f"not measured: who holds the memory of {source}: its allocator has not "
            "reported each block"
        )
        blamed = self.reading.sites[self._log.blamed]
        return replace(
            profile,
            memory=MemorySummary(
                source,
                int(self._log.high_water_bytes),
                blamed.path or (OUTSIDE_NAME,),
                blamed.phase,
            ),
            not_measured=(*profile.not_measured, unknown),
        )

    def _summary(self) -> MemorySummary:
        if get_ident() == self._thread:
            self._known.look_again()
        path, phase = self._holders.owner(self._log.peak_code)
        peak_bytes, failure = int(self._log.peak_bytes), self._failure()
        has_failed_there = failure is not None and peak_bytes > self._recorder.highest
        return MemorySummary(
            source=self._meter.name,
            peak_bytes=peak_bytes,
            peak_path=path,
            peak_phase=phase,
            at_peak=self._holders.held(self._log.holdings(True), has_failed_there),
            step_peaks=tuple(self._step_peaks),
            step=self._recorder.read(),
            failure=failure,
            growing=growing_most(self._growth.growing()),
        )

    def _failure(self) -> MemoryFailure | None:
        if self._log.failure is None:
            return None
        requested_bytes, code, steps_ended, holdings = self._log.failure
        path, phase = self._holders.owner(code)
        held = self._holders.held(holdings, is_running=True)
        # The first of them is the one in which memory ran out.
        steps_after = max(steps_ended - 1, 0)
        return MemoryFailure(requested_bytes, path, phase, held, steps_after)
